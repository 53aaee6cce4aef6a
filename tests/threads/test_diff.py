"""shardkit diff: the first difference, the largest ones, and nothing where there is none."""

import tracemalloc

import numpy
import pytest
from builders import small_gpt, train

import shardkit as sk
from shardkit import nn
from shardkit.testing.checkpoint import Checkpoint, compare, comparison_text
from shardkit.testing.checkpoint import diff as diff_module
from shardkit.testing.nn import Normal


def save(folder, changes=(), *, num_ranks=2, strategy="FSDP", model=small_gpt, **settings):
    """A checkpoint of the model, in which `changes` [(parameter, index, value)] were made
    before.
    """

    def on_rank(backend):
        module = model()
        for name, index, value in changes:
            array = module.named_parameters()[name].array
            array[index] = value
        sharded, _ = train(strategy, backend, 0, model=module, **settings)
        return sharded.save_model(folder)

    return Checkpoint(sk.run_ranks(num_ranks, on_rank)[0])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return save(tmp_path_factory.mktemp("original"))


UP, NORM = "blocks.0.mlp.up.weight", "head.norm.weight"  # [64, 16] and [16]


@pytest.mark.parametrize("strategy, num_ranks", [("FSDP", 3), ("DDP", 1), ("ZeRO-1", 4)])
def test_the_same_numbers_in_other_files_and_boxes_are_equal(
    original, strategy, num_ranks, tmp_path
):
    found = compare(original, save(tmp_path, strategy=strategy, num_ranks=num_ranks))
    assert found.is_equal and found.num_compared == 3 * len(small_gpt().named_parameters())
    assert found.num_elements == 3 * small_gpt().parameter_count
    assert "all values equal" in comparison_text(found)


@pytest.mark.parametrize("window", [5, 100, 1 << 18])
@pytest.mark.thorough
def test_first_and_largest_differences_are_found_at_their_places(
    original, window, tmp_path, monkeypatch
):
    monkeypatch.setattr(diff_module, "WINDOW", window)
    up = small_gpt().state_dict()[UP]
    changes = [
        (UP, (3, 2), up[3, 2] + 1e-3),
        (UP, (40, 15), up[40, 15] + 0.5),
        (UP, (7, 7), -up[7, 7]),
        (NORM, 9, 1.25),
    ]
    found = compare(original, save(tmp_path, changes), model_only=True)
    up_difference, norm_difference = found.tensors
    assert (up_difference.tensor, up_difference.num_different) == (f"model/{UP}", 3)
    assert up_difference.first.index == (3, 2) and up_difference.first.a == up[3, 2]
    assert up_difference.absolute_at.index == (40, 15) and up_difference.absolute == pytest.approx(
        0.5, rel=1e-6
    )
    assert up_difference.relative_at.index == (7, 7) and up_difference.relative == 2.0
    assert norm_difference.first == diff_module.Spot(
        (9,), 1.0, 1.25
    ) and norm_difference.relative == pytest.approx(0.2)
    text = comparison_text(found)
    assert f"model/{UP}[3, 2]: " in text and "2 of 37 tensors differ, in 4 of 8,736" in text


def test_a_tolerance_is_a_part_of_the_largest_magnitude_of_the_tensor(original, tmp_path):
    changed = save(tmp_path, [(NORM, 3, 1.001), (NORM, 5, 4.0)])
    assert compare(original, changed, tolerance=0.76).is_equal
    (found,) = compare(original, changed, tolerance=0.74).tensors
    assert found.num_different == 1 and found.first.index == (5,)
    (found,) = compare(original, changed, tolerance=0.0002).tensors  # 0.0002 x 4 < 0.001
    assert found.num_different == 2 and found.first.index == (3,)


def test_values_within_the_tolerance_are_not_said_to_be_equal(original, tmp_path):
    changed = save(tmp_path, [(NORM, 3, 1.001), (NORM, 5, 4.0)])
    found = compare(original, changed, tolerance=0.76)
    text = comparison_text(found)
    assert found.is_equal and "all values equal" not in text
    assert (
        "within 0.76 of each tensor's largest magnitude" in text and "2 of 26,208 elements" in text
    )
    assert f"largest absolute    3 in model/{NORM}[5]: 1.0 and 4.0" in text
    assert "all values equal" in comparison_text(compare(original, original, tolerance=0.76))


def test_what_is_within_the_tolerance_is_told_beside_what_is_not(original, tmp_path):
    changed = save(tmp_path, [(NORM, 5, 4.0), ("blocks.1.mlp_norm.weight", 2, 1.01)])
    text = comparison_text(compare(original, changed, tolerance=0.1))
    assert (
        "1 of 111 tensors differ beyond 0.1 of its largest magnitude, in 1 of 26,208 elements"
        in text
    )
    assert "1 more tensors differ within it" in text


@pytest.mark.thorough
def test_zeros_of_both_signs_are_equal_and_infinities_of_both_signs_are_not(original, tmp_path):
    zero, minus = (save(tmp_path / str(value), [(NORM, 2, value)]) for value in (0.0, -0.0))
    assert compare(zero, minus).is_equal
    high, low = (
        save(tmp_path / str(value), [(NORM, 2, value)]) for value in (numpy.inf, -numpy.inf)
    )
    (found,) = compare(high, low, tolerance=1e6).tensors
    assert found.absolute == found.relative == numpy.inf and found.first.index == (2,)


def test_nothing_in_common_is_not_equal_values(original, tmp_path):
    other = save(tmp_path, model=Scalar, num_ranks=1, optimizer=sk.SGD(lr=1.0))
    text = comparison_text(compare(original, other))
    assert "no tensor is in both in the same shape" in text and "equal" not in text


@pytest.mark.parametrize(
    "changes, name",
    [
        ({"samples_seen": 7}, "samples_seen"),
        ({"skipped_steps": 2}, "skipped_steps"),
        ({"data_position": {"at": 3}}, "data_position"),
        ({"loss_scale": {"value": 2.0, "good_steps": 1}}, "loss_scale"),
        ({"active_features": [1]}, "active_features"),
    ],
    ids=str,
)
def test_what_a_run_goes_on_from_is_compared_too(changes, name, original):
    other = Checkpoint(original.folder, {**original.manifest, **changes})
    assert [what for what, *_ in compare(original, other).descriptions] == [name]
    assert [what for what, *_ in compare(original, other, model_only=True).descriptions] == (
        ["active_features"] if name == "active_features" else []
    )


@pytest.mark.thorough
def test_nan_equals_nan_and_differs_from_every_number(original, tmp_path):
    first = save(tmp_path / "a", [(NORM, 2, numpy.nan), (NORM, 4, numpy.inf)])
    second = save(tmp_path / "b", [(NORM, 2, numpy.nan), (NORM, 4, numpy.inf)])
    assert compare(first, second).is_equal
    (found,) = compare(original, first, tolerance=1e6).tensors
    assert found.num_different == 2 and found.first.index == (2,) and found.absolute == numpy.inf


def test_tensors_on_one_side_other_forms_and_other_settings_are_listed(original, tmp_path):
    other = save(
        tmp_path,
        model=lambda: small_gpt(layers=3, width=18, dtype="float64"),
        optimizer=sk.Momentum(lr=0.1),
    )
    found = compare(original, other)
    assert not found.is_equal and len(found.only_a) == 2 * 37 and len(found.only_b) == 53 + 16
    assert (f"model/{UP}", "64x16 float32", "72x18 float64") in found.forms
    assert ("optimizer", "AdamW", "Momentum") in found.descriptions and (
        "model.layers",
        2,
        3,
    ) in found.descriptions
    text = comparison_text(found)
    assert "only in the first: 74 tensors" in text and "... and 66 more" in text


def test_another_dtype_is_a_difference_even_where_the_values_are_equal(original, tmp_path):
    ones = [(name, ..., 1.0) for name in small_gpt().named_parameters()]
    single = save(tmp_path / "a", ones)
    double = save(tmp_path / "b", ones, model=lambda: small_gpt(dtype="float64"))
    found = compare(single, double, model_only=True)
    assert len(found.forms) == 37 and not found.tensors and not found.is_equal


def test_model_only_leaves_out_optimizer_step_and_seeds(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 2)
        vector = model.gather_full_parameters()
        first = model.save_model(tmp_path / "a")
        twin, _ = train(
            "FSDP", backend, 0, model=small_gpt(seed=99), optimizer=sk.SGD(lr=1.0), seed=5
        )
        twin.set_parameters(vector)
        return first, twin.save_model(tmp_path / "b")

    a, b = map(Checkpoint, sk.run_ranks(2, on_rank)[0])
    assert compare(a, b, model_only=True).is_equal
    assert [name for name, *_ in compare(a, b).descriptions] == [
        "step",
        "seed",
        "optimizer",
        "samples_seen",
        "model.seed",
    ]


class Scalar(nn.Module):
    def __init__(self):
        self.scale = nn.Parameter((), Normal(1.0))
        self.table = nn.Parameter((0, 3), Normal(1.0))
        self.loss = nn.MeanSquaredError()
        self.finish(0)

    def forward(self, x):
        return x * self.scale


def test_scalars_and_empty_tensors_compare_too(tmp_path):
    first, same = (save(tmp_path / name, model=Scalar, num_ranks=1) for name in "ab")
    assert compare(first, same).is_equal
    (found,) = compare(
        first, save(tmp_path / "c", [("scale", (), 7.0)], model=Scalar, num_ranks=1)
    ).tensors
    assert found.first.index == () and found.first.b == 7.0 and found.num_elements == 1


def test_memory_is_bounded_by_the_window_and_not_by_the_tensors(tmp_path, monkeypatch):
    monkeypatch.setattr(diff_module, "WINDOW", 1 << 12)

    def make():
        return small_gpt(width=128, layers=1)  # one matrix alone has 65,536 elements, 256 KiB

    first, second = (save(tmp_path / name, model=make, optimizer=sk.SGD(lr=1.0)) for name in "ab")
    compare(first, second)
    tracemalloc.start()
    compare(first, second)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 18 < 4 * max(parameter.size for parameter in make().parameters()) + 1


@pytest.mark.thorough
def test_tensors_are_listed_with_their_numbers_in_order(tmp_path):
    deep = [(f"blocks.{layer}.mlp_norm.weight", 0, 2.0) for layer in (10, 9, 2)]
    settings = {
        "model": lambda: small_gpt(layers=11, width=4),
        "optimizer": sk.SGD(lr=1.0),
        "num_ranks": 1,
    }
    found = compare(save(tmp_path / "a", **settings), save(tmp_path / "b", deep, **settings))
    assert [difference.tensor.split(".")[1] for difference in found.tensors] == ["2", "9", "10"]


def test_a_damaged_file_is_an_error_and_not_a_difference(original, tmp_path):
    other = save(tmp_path)
    path = other.folder / "rank-00000.h5"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(sk.CheckpointError, match="rank-00000.h5 ends"):
        compare(original, other)
