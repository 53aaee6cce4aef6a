"""Buffers and averages of weights on a GPU: the values of the CPU, to rounding."""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import Buffer
from shardkit.testing.nn import Fill


class Tracked(nn.Module):
    loss = nn.MeanSquaredError()

    def __init__(self):
        self.linear = nn.Linear(4, 4, dtype="float64")
        self.mean = Buffer(4, Fill(0.0), "float64")
        self.steps = Buffer((), Fill(0), "int64")
        self.finish(0)

    def forward(self, x):
        x = nn.ops.add(x, 0.0)
        self.steps.advance()
        self.mean.observe(nn.ops.mean(x, 0), None, count=self.steps)
        return self.linear(x - self.mean)


def trained(device, tmp_path):
    """Values of buffers, averages and predictions after three steps and a resume, on two ranks."""

    def run(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.EMA(sk.AdamW(lr=0.1), 0.5), micro_batches=2, device=device
        )
        model = sk.FSDPModel(Tracked(), config)
        x = numpy.random.default_rng(0).standard_normal((8, 4))
        for _ in range(3):
            model.train(*sk.split_batch(model.mesh, x, x))
        model.save_model(tmp_path / device)
        other = sk.FSDPModel(Tracked(), config)
        other.load_model(tmp_path / device)
        if device == "cuda":
            with pytest.raises(sk.ShardingError, match="it has buffers, which may observe"):
                other.compile()
        with other.with_averaged_parameters():
            averages = other.get_parameters()
        own = other.wrapped_model.named_buffers()
        return {name: b.numpy().copy() for name, b in own.items()}, averages, other.predict(x)

    return sk.run_ranks(2, run)[0]


def test_buffers_and_averages_are_those_of_the_cpu(gpu, tmp_path):
    cpu, cuda = (trained(device, tmp_path) for device in ("cpu", "cuda"))
    assert cuda[0]["steps"] == cpu[0]["steps"] == 3
    for got, wanted in ((cuda[0]["mean"], cpu[0]["mean"]), *zip(cuda[1:], cpu[1:])):
        numpy.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-13)
