"""One road from a path to a checkpoint: whoever builds a model, loads, compares, converts or
generates finds the same one.
"""

import shutil
import warnings
from pathlib import Path

import numpy
import pytest
from builders import small_gpt, train
from checkpoints import flip_bit

import shardkit as sk
from shardkit.testing.checkpoint import find_checkpoint, find_description
from shardkit.testing.comm import by_first

DAMAGE = {
    "a flipped bit": lambda folder: flip_bit(folder / "rank-00001.h5"),
    "a missing file": lambda folder: (folder / "rank-00000.h5").unlink(),
    "half a manifest": lambda folder: (folder / "manifest.json").write_text(
        (folder / "manifest.json").read_text()[:500]
    ),
    "a missing manifest": lambda folder: (folder / "manifest.json").unlink(),
    "an empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
}
LAYERS = {1: 3, 2: 2, 3: 1}  # of the checkpoint of each step, so that it shows which one was found


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A folder with checkpoints of three models; the first one is of step 1."""
    folder = tmp_path_factory.mktemp("original")

    def on_rank(backend):
        for step, layers in LAYERS.items():
            train("FSDP", backend, step, model=small_gpt(layers=layers))[0].save_model(
                folder / "store"
            )

    sk.run_ranks(2, on_rank)
    return folder / "store"


@pytest.fixture
def store(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "store"))


def found_by_all(path):
    """The step that all agree on."""

    def on_rank(backend):
        model = sk.models.GPT.from_checkpoint(path)
        sharded, _ = train("ZeRO-2", backend, 0, model=model)
        manifest = sharded.load_model(path)
        assert len(model.named_parameters()) == len(
            small_gpt(layers=LAYERS[manifest["step"]]).named_parameters()
        )
        return manifest["step"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = set(sk.run_ranks(2, on_rank)) | {find_checkpoint(path)[0].manifest["step"]}
    (step,) = steps
    return step


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.thorough
def test_all_pass_over_a_newest_checkpoint_that_is_damaged(damage, store):
    DAMAGE[damage](store / "step-00000003")
    assert found_by_all(store) == 2
    DAMAGE[damage](store / "step-00000002")
    assert found_by_all(store) == 1


@pytest.mark.parametrize("place", ["", "checkpoints"])
@pytest.mark.thorough
def test_all_pass_over_a_newest_checkpoint_without_a_manifest_in_a_run_of_one_model(
    place, tmp_path
):
    def save(backend):
        for step in (1, 2):
            train("FSDP", backend, step)[0].save_model(tmp_path / place)

    def load(backend):
        return train("ZeRO-2", backend, 0)[0].load_model(tmp_path)["step"]

    sk.run_ranks(2, save)
    (tmp_path / place / "step-00000002" / "manifest.json").unlink()
    model = sk.models.GPT.from_checkpoint(tmp_path)
    assert model.configuration() == small_gpt().configuration()
    with pytest.warns(UserWarning, match="passed over: .*step-00000002 has no manifest.json"):
        assert sk.run_ranks(2, load) == [1, 1]
    assert find_checkpoint(tmp_path)[0].manifest["step"] == 1
    assert find_description(tmp_path).manifest["step"] == 1


@pytest.mark.parametrize("text", ["step-00000001\n", "step-00000009\n", "", None], ids=repr)
@pytest.mark.thorough
def test_the_file_that_names_the_newest_is_no_more_than_a_hint(text, store):
    (store / "newest").unlink() if text is None else (store / "newest").write_text(text)
    assert found_by_all(store) == 3


@pytest.mark.thorough
def test_a_run_folder_and_one_checkpoint_are_found_by_all(store, tmp_path):
    assert found_by_all(store / "step-00000002") == 2
    (tmp_path / "run").mkdir()
    store.rename(tmp_path / "run" / "checkpoints")
    assert found_by_all(tmp_path / "run") == 3
    assert found_by_all(tmp_path / "run" / "checkpoints" / "step-00000001") == 1


def test_a_folder_that_holds_checkpoints_itself_and_in_a_folder_below_means_its_own(store):
    (store / "checkpoints").mkdir()
    (store / "step-00000003").rename(store / "checkpoints" / "step-00000003")
    assert found_by_all(store) == 2


@pytest.mark.parametrize("damage", DAMAGE)
def test_one_checkpoint_that_was_asked_for_by_name_is_not_exchanged_for_an_older_one(damage, store):
    path = store / "step-00000003"
    whole = sk.models.GPT.from_checkpoint(path)
    DAMAGE[damage](path)

    def on_rank(backend):
        sharded, _ = train("FSDP", backend, 0, model=small_gpt(layers=1))
        with pytest.raises(sk.CheckpointError, match="step-00000003"):
            sharded.load_model(path)

    sk.run_ranks(2, on_rank)
    with pytest.raises(sk.CheckpointError, match="step-00000003"):
        find_checkpoint(path)
    if damage == "a flipped bit":  # which no description needs
        assert sk.models.GPT.from_checkpoint(path).configuration() == whole.configuration()
    else:
        with pytest.raises(sk.CheckpointError, match="step-00000003"):
            sk.models.GPT.from_checkpoint(path)


@pytest.mark.thorough
def test_what_was_passed_over_is_a_warning_and_is_in_the_refusal_of_an_older_one(store):
    flip_bit(store / "step-00000003" / "rank-00000.h5")

    def load(layers):
        sk.run_ranks(
            2,
            lambda backend: train("FSDP", backend, 0, model=small_gpt(layers=layers))[0].load_model(
                store
            ),
        )

    with pytest.warns(UserWarning, match="passed over.*step-00000003/rank-00000.h5") as said:
        load(2)
    assert len(said) == 1
    flip_bit(store / "step-00000003" / "manifest.json")
    with pytest.raises(
        sk.CheckpointError, match="step-00000002 is of another model.*passed over.*step-00000003"
    ):
        load(1)


def test_a_newest_checkpoint_of_another_model_is_not_exchanged_for_an_older_one_that_fits(store):
    def on_rank(backend):
        sharded, _ = train("FSDP", backend, 0, model=small_gpt(layers=2))
        with pytest.raises(sk.CheckpointError, match="step-00000003 is of another model"):
            sharded.load_model(store)

    sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_generating_says_what_was_passed_over(store):
    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=1.0))
        model = sk.FSDPModel(sk.models.GPT.from_checkpoint(store), config)
        model.load_model(store, only="model")
        assert len(model.generate([[1]], 2)[0]) == 2

    (store / "step-00000003" / "rank-00000.h5").unlink()
    with pytest.warns(UserWarning, match="step-00000002 is taken; passed over.*step-00000003"):
        sk.run_ranks(1, on_rank)


def test_a_path_that_is_a_file_is_said_to_be_one(store):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 0)
        before = model.gather_full_parameters()
        with pytest.raises(OSError, match="newest is a file; wanted a folder"):
            model.load_model(store / "newest")
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, on_rank)
    with pytest.raises(sk.CheckpointError, match="newest is a file; wanted a folder"):
        sk.models.GPT.from_checkpoint(store / "newest")


# {what differs: (keywords of load_model on rank 0, on rank 1, what the message names)}
DIFFERENT_LOADS = {
    "the path": ({"path": "a"}, {"path": "b"}, "path is .*b.? on rank 1"),
    "one of several": ({"path": ("a", "b")}, {"path": ("a", "c")}, "path is .*c.? on rank 1"),
    "what is taken": ({"path": "a", "only": "model"}, {"path": "a"}, "only is .* on rank 1"),
    "which of several": ({"path": "a", "checkpoint": 1}, {"path": "a"}, "checkpoint is "),
}


@pytest.mark.parametrize("case", DIFFERENT_LOADS)
def test_ranks_that_load_differently_are_told_so_before_anything_is_read(case, tmp_path):
    *mine, message = DIFFERENT_LOADS[case]

    def on_rank(backend):
        model, _ = train("DDP", backend, 0)
        arguments = dict(mine[backend.rank])
        path = arguments.pop("path")
        parts = [tmp_path / part for part in path]  # one letter each, also of a single path
        with pytest.raises(sk.ShardingError, match=message):
            model.load_model(tuple(parts) if isinstance(path, tuple) else parts[0], **arguments)

    sk.run_ranks(2, on_rank)


def test_what_the_first_rank_finds_is_found_by_all_and_so_is_its_error():
    calls = []

    def on_rank(backend):
        def look():
            calls.append(backend.rank)
            return {"found": backend.rank}

        def fail():
            raise FileNotFoundError("nothing there")

        found = by_first(backend, look)
        with pytest.raises(FileNotFoundError, match="nothing there"):
            by_first(backend, fail)
        return found

    assert sk.run_ranks(3, on_rank) == [{"found": 0}] * 3
    assert calls == [0]
