"""Fine-tune a model of transformers, sharded, and hand it back.

pip install torch transformers
mpiexec -n 2 python examples/finetune.py FOLDER

FOLDER/base is a folder of save_pretrained(); without one, a tiny random Llama is made. What was
trained is FOLDER/tuned, which AutoModelForCausalLM.from_pretrained opens.
"""

import sys
from pathlib import Path

import numpy

import shardkit as sk
from shardkit.checkpoint.tools.convert import to_safetensors

STEPS = 20


def make_base(folder):
    """Write a tiny Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, **sizes, **heads)).save_pretrained(folder)


def main(folder):
    base, run = f"{folder}/base", f"{folder}/run"
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    if backend.rank == 0 and not Path(base).exists():
        make_base(base)
    backend.barrier()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2))
    model = sk.FSDPModel(sk.models.GPT.from_checkpoint(base), config)
    model.load_model(base, only="model")  # each rank reads what it owns
    tokens = numpy.arange(33) % 7 + numpy.arange(8)[:, None]
    for step in range(STEPS):
        loss = model.train(*sk.split_batch(model.mesh, tokens[:, :-1], tokens[:, 1:]))
        if step in (0, STEPS - 1) and backend.rank == 0:
            print(f"step {step + 1}: loss {loss:.3f}")
    model.save_model(run)
    if backend.rank == 0:
        to_safetensors(run, f"{folder}/tuned")
    backend.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
