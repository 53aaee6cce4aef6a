"""Wrong use is answered clearly, on all ranks."""
import numpy
import pytest
from builders import SEQUENCE, token_batch

import shardkit as sk


def gpt(**changes):
    return sk.models.GPT(64, SEQUENCE, **{"width": 16, "layers": 2, "heads": 2, **changes})


def make(backend, pipeline=1, tensor=1, **settings):
    settings = {"minimum_parameter_group_size": 64, "check": True, **settings}
    return sk.HybridShardedModel(gpt(), sk.ShardingConfiguration(backend, **settings), pipeline, tensor)


@pytest.mark.parametrize("pipeline, tensor", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("act", [lambda m, x, y: m.train(x, y), lambda m, x, y: m.evaluate(x, y), lambda m, x, y: m.predict(x),
                                 lambda m, x, y: m.compute_gradients(x, y)], ids=["train", "evaluate", "predict", "gradients"])
def test_checked_mode_names_the_rank_whose_batch_differs_from_that_of_its_peers(pipeline, tensor, act):
    num_ranks = 2 * pipeline * tensor

    def run(backend):
        model = make(backend, pipeline, tensor)
        x, y = sk.split_batch(model.mesh, *token_batch(0, 4))
        act(model, x, y)                                                # the same on all peers
        if model.rank == num_ranks - 1:
            x = x[::-1]
        with pytest.raises(sk.ShardingError, match=rf"^rank {num_ranks - 1} passed another batch than rank \d+, its peer in "
                                                   r"data replica 1"):
            act(model, x, y)
        x, y = sk.split_batch(model.mesh, *token_batch(1, 4))
        assert numpy.isfinite(model.train(x, y))
    sk.run_ranks(num_ranks, run)


def test_data_replicas_may_have_batches_of_their_own_in_checked_mode():
    def run(backend):
        model = make(backend)
        return model.train(*token_batch(backend.rank, 2 + backend.rank))
    assert len(set(sk.run_ranks(3, run))) == 1


@pytest.mark.parametrize("text, is_on", [("1", True), ("yes", True), ("0", False), ("", False), ("off", False)])
def test_the_environment_switches_checked_mode_unless_the_configuration_does(text, is_on, monkeypatch):
    monkeypatch.setenv("SHARDKIT_CHECK", text)
    backend = sk.InMemoryCommunicationBackend(0, 1, f"checked {text}")
    assert sk.ShardingConfiguration(backend).is_checked == is_on
    assert not sk.ShardingConfiguration(backend, check=False).is_checked


@pytest.mark.parametrize("shut_down", [lambda model, backend: model.close(), lambda model, backend: backend.shutdown()],
                         ids=["model", "backend"])
@pytest.mark.parametrize("act", [lambda m: m.train(*token_batch(0, 4)), lambda m: m.predict(token_batch(0, 4)[0]),
                                 lambda m: m.gather_full_parameters()], ids=["train", "predict", "gather"])
def test_nothing_works_after_shutdown_and_the_error_says_so(shut_down, act):
    def run(backend):
        model = make(backend, 2)
        act(model)
        shut_down(model, backend)
        with pytest.raises(sk.CommunicationError, match="closed|not initialized|shut ?down"):
            act(model)
    sk.run_ranks(2, run)


def test_metadata_has_the_bubble_of_the_schedule_and_the_last_evaluation():
    def run(backend):
        model = make(backend, 2, micro_batches=4)
        before = model.get_model_metadata()
        loss = model.evaluate(*token_batch(0, 4))
        return before["bubble_fraction"], before["evaluation"], model.get_model_metadata()["evaluation"], loss
    for bubble, before, after, loss in sk.run_ranks(2, run):
        assert bubble == pytest.approx(2 / (4 * 3 + 2))     # (p - 1) (F + B), since a gradient leaves before W is done
        assert before is None and after == {"loss": loss, "step": 0}


def test_gradients_by_hand_have_the_length_of_the_shard_where_weights_are_tied_over_stages():
    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64)
        model, other = [sk.HybridShardedModel(gpt(tied=True, layers=3), config, 2) for _ in range(2)]
        for step in range(2):
            x, y = sk.split_batch(model.mesh, *token_batch(step, 4))
            model.train(x, y)
            gradients = other.compute_gradients(x, y)
            assert gradients.shape == other.local_parameter_shard.shape
            other.apply_gradients(gradients, 1e-2)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), other.gather_full_parameters())
    sk.run_ranks(4, run)
