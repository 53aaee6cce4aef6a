"""What would be silently wrong: other models that fit by their shapes, folders of other models, odd
values.
"""

import math
import shutil
import warnings
from pathlib import Path

import numpy
import pytest
from builders import small_gpt, train
from checkpoints import edit_manifest, rows, save_boxes

import shardkit as sk
from shardkit import nn
from shardkit.testing.checkpoint import Candidates, Checkpoint, CheckpointStore, compare
from shardkit.testing.nn import Normal


def mlp(sizes=(4, 3, 1), **changes):
    return sk.models.MLP(list(sizes), **changes)


def save_mlp(folder, model=mlp, active=None, **how):
    def on_rank(backend):
        sharded = sk.DDPModel(model(), sk.ShardingConfiguration(backend))
        if active is not None:
            sharded.set_active_feature_indices(active)
        return sharded.save_model(folder, **how)

    return Path(sk.run_ranks(2, on_rank)[0])


def load(folder, model, **how):
    def on_rank(backend):
        sharded = sk.FSDPModel(model(), sk.ShardingConfiguration(backend))
        before = sharded.gather_full_parameters()
        try:
            return sharded.load_model(folder, **how)
        except sk.CheckpointError:
            numpy.testing.assert_array_equal(sharded.gather_full_parameters(), before)
            raise

    return sk.run_ranks(2, on_rank)[0]


# ---- other models --------------------------------------------------------------------------------


@pytest.mark.parametrize("only", [None, "model"])
@pytest.mark.parametrize(
    "there, here, words",
    [
        (small_gpt, lambda: small_gpt(heads=4), "heads = 2 there and 4 here"),
        (mlp, lambda: mlp(activation="relu"), "activation = 'gelu' there and 'relu' here"),
    ],
    ids=["heads", "activation"],
)
def test_a_model_of_the_same_shapes_that_computes_something_else_is_a_warning(
    only, there, here, words, tmp_path
):
    save_mlp(tmp_path, there)
    with pytest.warns(UserWarning, match=words) as said:
        load(tmp_path, here, only=only)
    assert len(said) == 1


def encoder(window=None):
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True, window=window)
    model = nn.Sequential(nn.Linear(3, 4), layer)
    model.loss = nn.MSELoss()
    return model


def of_before(data):
    """Take windows out of the description of a model: it was written before there were any."""
    if isinstance(data, dict):
        return {
            k: of_before(each) for k, each in data.items() if k not in ("window", "full_layers")
        }
    return [of_before(each) for each in data] if isinstance(data, list) else data


def model_of_before(folder):
    edit_manifest(folder, lambda m: m.update(model=of_before(m["model"])))


@pytest.mark.parametrize(
    "make, words",
    [
        (small_gpt, "model: window = None there and 3 here$"),
        (encoder, r"model: \*modules\[1\].window = None there and 3 here$"),
    ],
)
def test_arguments_that_are_younger_than_a_checkpoint_had_their_defaults(make, words, tmp_path):
    folder = save_mlp(tmp_path, make)
    now = shutil.copytree(folder, tmp_path / "now" / folder.name)
    model_of_before(folder)
    assert compare(Checkpoint(folder), Checkpoint(now)).is_equal
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, make)
    with pytest.warns(UserWarning, match=words):
        load(tmp_path, lambda: make(window=3))


class Tupled(sk.models.MLP):
    def configuration(self):
        return {"sizes": (4, 3, 1), "nested": {"a": (1,)}}


@pytest.mark.parametrize(
    "there, here",
    [
        (lambda: small_gpt(seed=1), lambda: small_gpt(seed=2)),
        (lambda: Tupled([4, 3, 1]), lambda: Tupled([4, 3, 1])),
    ],
    ids=["seed", "tuples"],
)
def test_what_changes_no_model_is_no_warning(there, here, tmp_path):
    save_mlp(tmp_path, there)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(tmp_path, here)


class Bare(nn.Module):
    """The parameters of a small MLP, without its features."""

    def __init__(self):
        self.hidden, self.output = nn.Linear(4, 3), nn.Linear(3, 1)
        self.loss = nn.MeanSquaredError()
        self.finish(0)

    def forward(self, x):
        return self.output(self.hidden(x))


def as_bare(folder):
    """Give the tensors the names that Bare has."""
    names = list(Bare().named_parameters())
    stored = [f"model/{name}" for name in mlp().named_parameters()]
    edit_manifest(
        folder,
        lambda m: m.update(
            tensors={f"model/{new}": m["tensors"][old] for new, old in zip(names, stored)}
        ),
    )


def test_features_that_were_switched_off_are_not_switched_on_by_a_model_without_features(tmp_path):
    as_bare(save_mlp(tmp_path, active=[0, 2]))
    with pytest.raises(
        sk.CheckpointError, match=r"active_features = \[0, 2\].*has no input features"
    ):
        load(tmp_path, Bare)


def test_features_that_the_model_does_not_have_are_refused_before_anything_changes(tmp_path):
    folder = save_mlp(tmp_path, active=[0, 2])
    edit_manifest(folder, lambda m: m.update(active_features=[0, 4]))
    with pytest.raises(
        sk.CheckpointError, match=r"active_features = \[0, 4\].*has 4 input features"
    ):
        load(tmp_path, mlp)


# ---- folders -------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_model_is_not_replaced(tmp_path):
    folder = save_mlp(tmp_path)
    before = (folder / "manifest.json").read_bytes()
    with pytest.raises(
        sk.CheckpointError, match="step-00000000 is of another model.*choose another folder"
    ):
        save_mlp(tmp_path, lambda: mlp((4, 5, 1)))
    assert (folder / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["newest", "step-00000000"]
    save_mlp(tmp_path)


def test_checkpoints_of_another_model_are_not_deleted_as_older_ones(tmp_path):
    for step, size in (1, 7), (2, 5), (3, 5), (4, 5):
        save_boxes(
            tmp_path, {"model/a": (numpy.zeros(size, "float32"), rows((size,), 1))}, step, keep=2
        )
    assert [folder.name[-1] for folder in CheckpointStore(tmp_path).steps()] == ["1", "3", "4"]


def test_a_checkpoint_is_no_folder_of_checkpoints(tmp_path):
    folder = save_mlp(tmp_path)
    with pytest.raises(sk.CheckpointError, match="is a checkpoint itself"):
        save_mlp(folder)
    assert not list(folder.glob("step-*"))


def test_a_folder_of_checkpoints_may_be_called_as_a_checkpoint_is(tmp_path):
    save_mlp(tmp_path / "step-1")
    assert load(tmp_path / "step-1", mlp)["step"] == 0


def test_a_folder_that_was_renamed_to_another_step_is_passed_over(tmp_path):
    for step in (5, 6):
        save_boxes(tmp_path, {"model/a": (numpy.zeros(3, "float32"), rows((3,), 1))}, step)
    (tmp_path / "step-00000005").rename(tmp_path / "step-00000009")
    candidates = Candidates.at(tmp_path)
    (found,) = sk.run_ranks(1, candidates.first_valid)
    assert (
        found.manifest["step"] == 6
        and "step-00000009 is damaged: it is of step 5" in candidates.skipped[0]
    )
    (tmp_path / "step-00000009").rename(tmp_path / "the best")
    assert Checkpoint(tmp_path / "the best").manifest["step"] == 5


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keep",
    [
        {"keep": math.nan},
        {"keep": 2.5},
        {"keep": "3"},
        {"keep": True},
        {"keep": 2, "keep_every": 0.5},
        {"keep": 2, "keep_every": math.inf},
    ],
    ids=str,
)
def test_numbers_of_checkpoints_to_keep_are_integers(keep, tmp_path):
    save_mlp(tmp_path)
    with pytest.raises(sk.CheckpointError, match="an integer of at least 1"):
        save_mlp(tmp_path, **keep)
    save_mlp(tmp_path, keep=numpy.int64(2))


def test_keep_every_without_keep_is_refused(tmp_path):
    with pytest.raises(sk.CheckpointError, match="keep_every = 5 without keep"):
        save_mlp(tmp_path, keep_every=5)


@pytest.mark.parametrize("position", [{1: "a"}, {"at": {2: 3}}, {"at": [{None: 1}]}], ids=str)
def test_keys_that_would_come_back_as_other_keys_are_not_stored(position, tmp_path):
    with pytest.raises(sk.CheckpointError, match="cannot be stored.*key"):
        save_mlp(tmp_path, data_position=position)
    assert not (tmp_path / "newest").exists()


class Odd(nn.Module):
    def __init__(self, limit=0.0):
        self.limit = limit
        self.scale = nn.Parameter((1,), Normal(1.0))
        self.loss = nn.MeanSquaredError()
        self.finish(0)

    def forward(self, x):
        return x * self.scale

    def configuration(self):
        return {"limit": self.limit}


def test_a_configuration_that_is_not_a_number_comes_back_from_a_checkpoint_and_an_image(tmp_path):
    def on_rank(backend):
        model, _ = train("DDP", backend, 0, model=Odd(math.nan))
        model.save_model(tmp_path)
        return model.serialize()

    image = sk.run_ranks(2, on_rank)[0]
    for source in (tmp_path, image):
        assert math.isnan(sk.load(source).limit)
