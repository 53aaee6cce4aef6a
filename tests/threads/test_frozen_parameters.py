"""Freezing is not built: it is refused, on all ranks, and what the message offers instead works."""

import numpy
import pytest
from builders import SEQUENCE, token_batch

import shardkit as sk
from shardkit.nn import Tensor


def gpt():
    return sk.models.GPT(64, SEQUENCE, width=16, layers=2, heads=2)


def configuration(backend, **settings):
    return sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=1e-2, weight_decay=0.1),
        minimum_parameter_group_size=64,
        **settings,
    )


MAKERS = {
    "DDP": sk.DDPModel,
    "ZeRO-1": sk.ZeRO1Model,
    "ZeRO-2": sk.ZeRO2Model,
    "FSDP": sk.FSDPModel,
    "pipeline": sk.PipelineParallelModel,
    "tensor": sk.TensorParallelModel,
    "hybrid": lambda model, config: sk.HybridShardedModel(model, config, 2, 1),
}


@pytest.mark.parametrize("strategy", MAKERS)
@pytest.mark.parametrize("name", ["embedding.tokens.weight", "blocks.1.mlp.down.bias"])
def test_a_model_with_a_frozen_parameter_is_refused_on_all_ranks(strategy, name):
    def run(backend):
        model = gpt()
        model.named_parameters()[name].requires_grad = False
        with pytest.raises(
            sk.ShardingError, match=rf"1 of its parameters frozen \({name}\).*Tensor"
        ):
            MAKERS[strategy](model, configuration(backend))
        return True

    assert all(sk.run_ranks(2, run))


@pytest.mark.parametrize("strategy", MAKERS)
def test_a_parameter_of_a_sharded_model_cannot_be_frozen_later(strategy):
    def run(backend):
        model = MAKERS[strategy](gpt(), configuration(backend))
        model.train(*token_batch(0, 4))
        for parameter in model.wrapped_model.parameters():
            with pytest.raises(
                sk.ShardingError, match=f"parameter {parameter.name} .* sharded model.*Tensor"
            ):
                parameter.requires_grad = False
            assert parameter.requires_grad
        return model.train(*token_batch(0, 4))

    assert len(set(sk.run_ranks(2, run))) == 1


def test_a_weight_that_is_a_plain_tensor_stays_as_it_is_while_the_others_are_trained():
    def run(backend):
        module = sk.models.MLP([3, 4, 4, 2], seed=1)
        constant = module.layers[0].weight.numpy().copy()
        module.layers[0].weight = Tensor(module.layers[0].weight.numpy())
        model = sk.FSDPModel(module, configuration(backend))
        before = model.get_parameters()
        assert before.size == 4 + 20 + 10
        losses = [
            model.train(numpy.ones((2, 3), "float32"), numpy.ones((2, 2), "float32"))
            for _ in range(20)
        ]
        assert losses[-1] < losses[0] and (model.get_parameters() != before).all()
        numpy.testing.assert_array_equal(module.layers[0].weight.numpy(), constant)

    sk.run_ranks(2, run)


@pytest.mark.parametrize("layer, member", [(1, "weight"), (0, "bias")])
def test_a_tensor_plan_does_not_cut_a_constant(layer, member):
    def run(backend):
        module = sk.models.MLP([4, 4, 4], seed=1)
        parameter = getattr(module.layers[layer], member)
        setattr(module.layers[layer], member, Tensor(parameter.numpy()))
        with pytest.raises(sk.ShardingError, match=f"the {member} of layers.{layer} is a constant"):
            sk.TensorParallelModel(module, configuration(backend))

    sk.run_ranks(2, run)
