"""A small model of transformers and conversations about sums, to be tuned on them by commands.

pip install torch transformers 'shardkit[chat]'
python examples/chat.py FOLDER && cd FOLDER
mpiexec -n 2 shardkit prepare chat.jsonl --chat --tokenizer=base --output=chat.h5
mpiexec -n 2 shardkit train --task=chat --model.start=base --data.path=chat.h5 --run.steps=100
shardkit convert --to safetensors runs/chat tuned

`tuned` is for AutoModelForCausalLM and AutoTokenizer, with the template of the conversations.
"""

import json
import sys
from pathlib import Path

TEMPLATE = """{% for message in messages %}<|{{ message.role }}|>
{%- if message.role == 'assistant' %}
{% generation %}{{ message.content }}<|end|>{% endgeneration %}
{% else %}{{ message.content }}<|end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
ROLES = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def write_conversations(path):
    """Write what is asked about sums, and what is answered."""
    with open(path, "w") as file:
        for number in range(400):
            a, b = number % 20, number // 20
            asked = {"role": "user", "content": f"{a} + {b} = ?"}
            told = {"role": "assistant", "content": f"It is {a + b}."}
            file.write(json.dumps({"messages": [asked, told]}) + "\n")


def write_base(folder):
    """Write a tiny Llama with random weights, and a tokenizer of bytes with the template."""
    import tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    numbers = {name: number for number, name in enumerate(ROLES)}
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    numbers |= {name: 4 + number for number, name in enumerate(alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(numbers, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(ROLES)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=ROLES[0])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 128, "eos_token_id": 0}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(numbers), **sizes)).save_pretrained(folder)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    write_conversations(folder / "chat.jsonl")
    write_base(folder / "base")
