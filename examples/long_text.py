"""A GPT whose context no rank has alone: ranks share 32,768 tokens, and keys go round among them.

mpiexec -n 2 python examples/long_text.py             # 32,768 tokens: some seconds a step
mpiexec -n 2 python examples/long_text.py 512 40

The text is noise that comes again after half of the context, so that only who looks that far back
can tell the second half.
"""

import sys

import numpy

import shardkit as sk

LETTERS = 16


def text(length, step):
    """Return `length` + 1 tokens: one half, and the same again. A file would be read like this."""
    half = numpy.random.default_rng(step).integers(0, LETTERS, length // 2)
    return numpy.concatenate([half, half, half[:1]])


def main(length=32_768, steps=3):
    backend = sk.MPICommunicationBackend()
    backend.initialize()
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=3e-3))
    gpt = sk.models.GPT(LETTERS, length, 32, layers=2, heads=2, style="llama")
    model = sk.HybridShardedModel(gpt, config, domain_parallel_size=backend.world_size)
    part = sk.domain_part(model)  # None: one rank has the whole text
    start, stop = part.span(length) if part else (0, length)
    for step in range(steps):
        tokens = text(length, step)[None, start : stop + 1]  # this rank's, and one more
        x, y = tokens[:, :-1], tokens[:, 1:]
        loss = model.train(*((part.x(x, length), part.y(y, length)) if part else (x, y)))
        if backend.rank == 0:
            print(f"step {step + 1}: loss {loss:.4f}; rank 0 has tokens {start} to {stop - 1}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
