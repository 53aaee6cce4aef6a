"""Attention whose projections are rows of one parameter, under policies that release that."""

import numpy
import pytest

import shardkit as sk
from shardkit import nn

RNG = numpy.random.default_rng(0)
X, Y = RNG.standard_normal((12, 5, 6)), RNG.standard_normal((12, 5, 6))
PADDING = numpy.array([False, False, True, False, True])


class Reader(nn.Module):
    """Attention to itself, to a part of itself, and with a bias of offsets."""

    def __init__(self):
        for name in ("own", "cross", "biased"):
            attention = nn.MultiheadAttention(6, 2, batch_first=True, dtype="float64")
            setattr(self, name, attention)
        self.offsets = nn.RelativePositionBias(2, 5, dtype="float64")
        self.loss = nn.MeanSquaredError()
        self.encoder = nn.TransformerEncoderLayer(6, 3, 8, 0.0, batch_first=True, dtype="float64")

    def forward(self, x):
        x = x + self.own(x, x, x, need_weights=False)[0]
        part = x[:, :3]
        x = x + self.cross(x, part, part, need_weights=False)[0]
        x = x + self.biased(x, x, x, attn_mask=self.offsets())[0]
        return self.encoder(x)


def trained(model_class, num_ranks):
    def run(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=0.01), minimum_parameter_group_size=1
        )
        model = model_class(Reader(), config)
        parts = sk.split_batch(model.mesh, X, Y)
        return [model.train(*parts) for _ in range(4)]

    return sk.run_ranks(num_ranks, run)[0]


@pytest.mark.parametrize("name", ["ZeRO2Model", "FSDPModel"])
def test_attention_trains_as_on_one_rank(name):
    wanted = trained(sk.DDPModel, 1)
    assert wanted[-1] < wanted[0]
    numpy.testing.assert_allclose(trained(getattr(sk, name), 3), wanted, rtol=1e-12)
