"""What is wrong on one rank only is refused on all: with one message, which names the rank and what
is wrong, at once, and nothing has been changed.
"""

import numpy
import pytest
from wrong_settings import CALLED, DIFFERENT, GENERATED, MADE, batch, mlp

import shardkit as sk

WHERE = {"the first": (0,), "the last": (-1,), "all": None}


def wrong_ranks(backend, where):
    size = backend.world_size
    return range(size) if WHERE[where] is None else [rank % size for rank in WHERE[where]]


def refused(backend, act, where):
    """Return what this rank is told when it acts: class and message; "" if nothing."""
    try:
        act(backend.rank in wrong_ranks(backend, where))
    except (sk.ShardkitError, ValueError, TypeError, OSError) as error:
        return type(error).__name__, str(error)
    return "", ""


def check_told(told, words, where, num_ranks):
    assert len(set(told)) == 1, told
    kind, message = told[0]
    assert kind not in ("", "CommunicationError", "CommunicationTimeout", "PeerError"), told
    assert words in message
    if where != "all":
        assert f"rank {0 if where == 'the first' else num_ranks - 1}" in message
    assert message.count("rank 0:") + message.count(f"rank {num_ranks - 1}:") <= 1


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", MADE)
def test_a_setting_that_is_wrong_is_refused_on_all_ranks(name, num_ranks, where):
    make, words = MADE[name]

    def run(backend):
        told = refused(backend, lambda is_wrong: make(backend, is_wrong), where)
        again = sk.FSDPModel(mlp(), sk.ShardingConfiguration(backend))  # the ranks are in step
        assert numpy.isfinite(again.train(*batch()))
        return told

    check_told(sk.run_ranks(num_ranks, run, timeout=500), words, where, num_ranks)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("name", CALLED)
def test_a_call_that_is_wrong_is_refused_on_all_ranks_and_changes_nothing(name, num_ranks, where):
    call, words = CALLED[name]

    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(), micro_batches=2)
        model = sk.DDPModel(mlp(), config)
        before = model.serialize()
        told = refused(backend, lambda is_wrong: call(model, is_wrong), where)
        assert model.serialize() == before
        assert numpy.isfinite(model.train(*batch()))
        return told

    check_told(sk.run_ranks(num_ranks, run, timeout=500), words, where, num_ranks)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", GENERATED)
def test_what_cannot_be_generated_is_refused_on_all_ranks(name, where):
    wrong, words = GENERATED[name]

    def run(backend):
        gpt = sk.models.GPT(8, 8, width=8, layers=1, heads=2)
        model = sk.FSDPModel(gpt, sk.ShardingConfiguration(backend))

        def generate(is_wrong):
            model.generate(**{"prompts": [[1]], "num_tokens": 1, **(wrong if is_wrong else {})})

        return refused(backend, generate, where)

    check_told(sk.run_ranks(2, run, timeout=500), words, where, 2)


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("name", DIFFERENT)
def test_an_argument_that_is_another_on_one_rank_is_named_with_values_and_ranks(name, odd):
    act, words = DIFFERENT[name]

    def run(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW())
        model = sk.DDPModel(mlp(), config)
        before = model.serialize()
        with pytest.raises((sk.ShardingError, sk.ShapeError)) as caught:
            act(model, backend.rank == odd)
        assert model.serialize() == before
        return str(caught.value)

    told = sk.run_ranks(3, run, timeout=500)
    assert len(set(told)) == 1 and words.format(odd=odd) in told[0]
    assert f"rank {odd}" in told[0]


# ---- runs ----------------------------------------------------------------------------------------


def train(backend, folder, settings, data=None, loss=None):
    settings = {"run.steps": 2, "batch.sequences": 6} | settings
    data = (batch(), batch()) if data is None else data
    training = sk.Training(
        mlp(), data, folder=folder, settings=settings, loss=loss, backend=backend
    )
    return training.run()


WRONG_RUNS = {
    "steps": ({"run.steps": 0}, "run.steps = 0"),
    "no such key": ({"run.setps": 3}, "run.steps"),
    "the batch": ({"batch.sequences": 5}, "batch.sequences"),
    "the rate": ({"optimizer.learning_rate": -1.0}, "learning_rate = -1.0"),
    "micro-batches": ({"batch.micro_batch": 0}, "micro_batch"),
    "the policy": ({"parallel.policy": "zero9"}, "zero9"),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("name", WRONG_RUNS)
def test_a_run_whose_settings_are_wrong_is_refused_on_all_ranks(name, where, tmp_path):
    wrong, words = WRONG_RUNS[name]

    def run(backend):
        told = refused(
            backend,
            lambda is_wrong: train(backend, tmp_path / "run", wrong if is_wrong else {}),
            where,
        )
        assert not (tmp_path / "run" / "checkpoints").exists()
        return told

    check_told(sk.run_ranks(2, run, timeout=500), words, where, 2)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("data", [3, (batch(), (batch()[0], batch(5)[1]))], ids=["none", "uneven"])
def test_a_run_whose_data_are_none_is_refused_on_all_ranks(data, where, tmp_path):
    def run(backend):
        return refused(
            backend,
            lambda is_wrong: train(backend, tmp_path / "run", {}, data if is_wrong else None),
            where,
        )

    check_told(sk.run_ranks(2, run, timeout=500), "", where, 2)


@pytest.mark.parametrize(
    "name, here, there",
    [
        ("run.steps", 2, 3),
        ("run.seed", 0, 1),
        ("optimizer.learning_rate", 0.1, 0.2),
        ("batch.sequences", 6, 12),
        ("parallel.policy", "ddp", "zero1"),
    ],
)
def test_settings_of_a_run_that_differ_are_named_before_its_first_step(name, here, there, tmp_path):
    def run(backend):
        with pytest.raises(sk.ShardingError) as caught:
            train(backend, tmp_path / "run", {name: there if backend.rank == 1 else here})
        return str(caught.value)

    first, second, third = sk.run_ranks(3, run, timeout=500)
    assert first == second == third
    assert f"{name} is {there!r} on rank 1, but {here!r} on ranks 0, 2; start all" in first


def test_a_run_in_another_folder_is_named(tmp_path):
    def run(backend):
        with pytest.raises(sk.ShardingError, match="run.folder is .* on rank 1, but"):
            train(backend, tmp_path / f"run{backend.rank}", {})

    sk.run_ranks(2, run, timeout=500)
    assert not list(tmp_path.iterdir())
