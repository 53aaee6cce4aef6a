"""The trainer beside embedding.c: it says what it has read, and leaves a second coupling early."""

import numpy

import shardkit as sk

NUM_PUTS = int(__import__("sys").argv[1])


def train(c):
    model = sk.FSDPModel(sk.models.MLP([3, 1]), sk.ShardingConfiguration(c.backend))
    c.steer(rate=0.5, both=[1, 2], word="low")
    c.publish(model)
    outputs = model.predict(numpy.arange(1, 7, dtype="float32").reshape(2, 3)).ravel()
    print("expected", *(float(each).hex() for each in outputs))
    for x, _ in c.batches(model, NUM_PUTS, y=("y", "time", "weight")):
        print("read", x.sum(0).tolist(), {n: v[:2].tolist() for n, v in _.items()}, flush=True)


try:
    sk.coupled(trainers=1)
except sk.ConfigurationError as error:
    print("refused:", error, flush=True)
with sk.coupled(trainers=1) as c:
    train(c)
try:
    with sk.coupled(trainers=1) as c:
        raise KeyError("lost")
except KeyError:
    pass
