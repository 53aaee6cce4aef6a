"""Who gathers: the program of a model with blocks, or the modules of a single block."""

from dataclasses import dataclass

import numpy
import pytest
from builders import STRATEGIES, sha256, small_gpt
from called_models import WIDTH, UNetLike, batch

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import AtCalls, ByProgram, Gathering, gathering_of


def made(strategy, model, backend):
    settings = {"minimum_parameter_group_size": 256, "optimizer": sk.AdamW(lr=1e-2)}
    settings["micro_batches"] = 4 // backend.world_size
    return STRATEGIES[strategy](model, sk.ShardingConfiguration(backend, **settings))


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("model", [small_gpt, UNetLike])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_modules_gather_where_a_single_block_is_sharded_and_nowhere_else(
    strategy, model, num_ranks
):
    forms = sk.run_ranks(num_ranks, lambda b: type(gathering_of(made(strategy, model(), b))))
    is_sharded = strategy in ("FSDP", "HSDP") and num_ranks > 1
    form = AtCalls if is_sharded and model is UNetLike else ByProgram
    assert forms == [form] * num_ranks


@pytest.mark.parametrize("form", [ByProgram, AtCalls])
def test_both_have_the_members_of_the_contract(form):
    members = {name for name in vars(Gathering) if name[0] != "_"}
    assert members and members <= set(dir(form))


@dataclass
class Scaled(nn.Module):
    """A module that is compared by value, so it is no key of a dictionary."""

    factor: float

    def __post_init__(self):
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(WIDTH, nn.init.Fill(self.factor))

    def forward(self, x):
        """Return the scaled output of the layer."""
        return self.layer(x) * self.scale


class TwoScaled(nn.Module):
    """Two modules that are equal, with parameters of their own."""

    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.first, self.second = Scaled(1.0), Scaled(1.0)

    def forward(self, x):
        """Return x after both."""
        return self.second(self.first(x))


@pytest.mark.parametrize("strategy", ["DDP", "FSDP"])
def test_modules_that_are_compared_by_value_and_are_no_keys_are_gathered(strategy):
    def run(backend):
        model = made(strategy, TwoScaled(), backend)
        for step in range(2):
            model.train(*sk.split_batch(model.mesh, *batch(step)))
        return sha256(numpy.ascontiguousarray(model.gather_full_parameters()))

    ends = {end for num_ranks in (1, 2) for end in sk.run_ranks(num_ranks, run)}
    assert len(ends) == 1
