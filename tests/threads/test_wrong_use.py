"""Wrong use is answered clearly, on all ranks."""

import numpy
import pytest
from builders import SEQUENCE, token_batch

import shardkit as sk


def gpt(**changes):
    return sk.models.GPT(64, SEQUENCE, **{"width": 16, "layers": 2, "heads": 2, **changes})


def make(backend, pipeline=1, tensor=1, **settings):
    settings = {"minimum_parameter_group_size": 64, "check": True, **settings}
    return sk.HybridShardedModel(
        gpt(), sk.ShardingConfiguration(backend, **settings), pipeline, tensor
    )


@pytest.mark.strength(1)
@pytest.mark.parametrize("pipeline, tensor", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize(
    "act",
    [
        lambda m, x, y: m.train(x, y),
        lambda m, x, y: m.evaluate(x, y),
        lambda m, x, y: m.predict(x),
        lambda m, x, y: m.compute_gradients(x, y),
    ],
    ids=["train", "evaluate", "predict", "gradients"],
)
def test_checked_mode_names_the_rank_whose_batch_differs_from_that_of_its_peers(
    pipeline, tensor, act
):
    num_ranks = 2 * pipeline * tensor

    def run(backend):
        model = make(backend, pipeline, tensor)
        x, y = sk.split_batch(model.mesh, *token_batch(0, 4))
        act(model, x, y)  # the same on all peers
        if model.rank == num_ranks - 1:
            x = x[::-1]
        with pytest.raises(
            sk.ShardingError,
            match=rf"^rank {num_ranks - 1} passed another batch than rank \d+, its peer in "
            r"data replica 1",
        ):
            act(model, x, y)
        x, y = sk.split_batch(model.mesh, *token_batch(1, 4))
        assert numpy.isfinite(model.train(x, y))

    sk.run_ranks(num_ranks, run)


@pytest.mark.parametrize("pipeline, tensor", [(1, 2), (2, 1)])
def test_the_first_batch_is_compared_between_peers_without_checked_mode(pipeline, tensor):
    """Stages would train x of one rank on y of another, tensor ranks on several x."""

    def run(backend):
        model = make(backend, pipeline, tensor, check=False)
        with pytest.raises(sk.ShardingError, match="^rank 1 passed another batch than rank 0"):
            model.train(*token_batch(backend.rank, 4))
        return model.train(*token_batch(0, 4))

    assert len({*sk.run_ranks(2, run)}) == 1


def test_data_replicas_may_have_batches_of_their_own_in_checked_mode():
    def run(backend):
        model = make(backend)
        return model.train(*token_batch(backend.rank, 2 + backend.rank))

    assert len(set(sk.run_ranks(3, run))) == 1


@pytest.mark.parametrize(
    "text, is_on", [("1", True), ("yes", True), ("0", False), ("", False), ("off", False)]
)
def test_the_environment_switches_checked_mode_unless_the_configuration_does(
    text, is_on, monkeypatch
):
    monkeypatch.setenv("SHARDKIT_CHECK", text)
    backend = sk.InMemoryCommunicationBackend(0, 1, f"checked {text}")
    assert sk.ShardingConfiguration(backend).is_checked == is_on
    assert not sk.ShardingConfiguration(backend, check=False).is_checked


@pytest.mark.parametrize(
    "shut_down",
    [lambda model, backend: model.close(), lambda model, backend: backend.shutdown()],
    ids=["model", "backend"],
)
@pytest.mark.parametrize(
    "act",
    [
        lambda m: m.train(*token_batch(0, 4)),
        lambda m: m.predict(token_batch(0, 4)[0]),
        lambda m: m.gather_full_parameters(),
    ],
    ids=["train", "predict", "gather"],
)
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
        return (
            before["bubble_fraction"],
            before["evaluation"],
            model.get_model_metadata()["evaluation"],
            loss,
        )

    for bubble, before, after, loss in sk.run_ranks(2, run):
        assert bubble == pytest.approx(
            2 / (4 * 3 + 2)
        )  # (p - 1) (F + B), since a gradient leaves before W is done
        assert before is None and after == {"loss": loss, "step": 0, "metrics": {}}


def test_gradients_by_hand_have_the_length_of_the_shard_where_weights_are_tied_over_stages():
    def run(backend):
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64
        )
        model, other = [
            sk.HybridShardedModel(gpt(tied=True, layers=3), config, 2) for _ in range(2)
        ]
        for step in range(2):
            x, y = sk.split_batch(model.mesh, *token_batch(step, 4))
            model.train(x, y)
            gradients = other.compute_gradients(x, y)
            assert gradients.shape == other.local_parameter_shard.shape
            other.apply_gradients(gradients, 1e-2)
        numpy.testing.assert_array_equal(
            model.gather_full_parameters(), other.gather_full_parameters()
        )

    sk.run_ranks(4, run)


def test_importance_of_features_leaves_the_evaluation_of_the_metadata_as_it_was():
    def run(backend):
        model = sk.FSDPModel(
            sk.models.MLP([3, 8, 1]),
            sk.ShardingConfiguration(backend, minimum_parameter_group_size=8),
        )
        x = numpy.random.default_rng(backend.rank).standard_normal((4, 3))
        loss = model.evaluate(x, x[:, :1])
        evaluation = model.get_model_metadata()["evaluation"]
        model.get_feature_importance(x[::-1].copy(), 5 * x[:, :1])
        assert set(evaluation["metrics"]) == {"rmse", "mae", "r2"} and evaluation["loss"] == loss
        return model.get_model_metadata()["evaluation"] == evaluation

    assert all(sk.run_ranks(2, run))


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    "mesh", [(1, 1), (2, 1), (1, 4)], ids=["data", "pipeline", "tensor with shared key heads"]
)
@pytest.mark.parametrize(
    "copied",
    [lambda m: m.deep_copy(), lambda m: m.clone(), lambda m: m.with_parameters(m.get_parameters())],
    ids=["deep_copy", "clone", "with_parameters"],
)
def test_a_model_trains_on_when_its_copy_is_closed_and_a_copy_when_its_model_is(copied, mesh):
    def run(backend):
        config = sk.ShardingConfiguration(backend, minimum_parameter_group_size=64)
        for keeps_copy in (False, True):
            model = sk.HybridShardedModel(gpt(heads=4, kv_heads=2), config, *mesh)
            x, y = sk.split_batch(model.mesh, *token_batch(0, 4))
            kept, closed = (model, copied(model))[:: -1 if keeps_copy else 1]
            closed.close()
            closed.close()  # a second call does nothing
            assert numpy.isfinite(kept.train(x, y))
            for act in (
                lambda m: m.train(x, y),
                lambda m: m.predict(x),
                lambda m: m.gather_full_parameters(),
            ):
                with pytest.raises(sk.CommunicationError, match="closed"):
                    act(closed)
            kept.close()
            assert not model.mesh.group("data").is_initialized

    sk.run_ranks(4, run)


def test_a_copy_that_could_not_be_made_does_not_keep_the_mesh_open():
    def run(backend):
        model = make(backend)
        with pytest.raises(sk.ShapeError):
            model.with_parameters(numpy.ones(3))
        model.close()
        return model.mesh.group("data").is_initialized

    assert not any(sk.run_ranks(2, run))


def test_a_batch_of_fewer_samples_than_data_ranks_is_not_split():
    def run(backend):
        mesh = sk.Mesh(backend)
        x, y = token_batch(0, 5)
        assert [len(part) for part in sk.split_batch(mesh, x, y)] == [2 - (backend.rank == 2)] * 2
        with pytest.raises(sk.ShapeError, match="2 samples .* 3 data ranks"):
            sk.split_batch(mesh, x[:2], y[:2])
        with pytest.raises(sk.ShapeError, match="5 and 4 samples"):
            sk.split_batch(mesh, x, y[:4])
        with pytest.raises(sk.ShapeError, match="single number"):
            sk.split_batch(mesh, 3.0)

    sk.run_ranks(3, run)
