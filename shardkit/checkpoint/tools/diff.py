"""Compare two checkpoints number by number: what differs, where first, and by how much.

Tensors are read in windows of a few boxes, from whatever files and boxes they were written to: a
model of any size is compared in the same memory, and the meshes that wrote the two do not matter.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from math import inf, prod

import numpy

from ...errors import CheckpointError
from ...files.trust import Trust
from ...layout.box import flat_range_to_boxes
from ...nn.recorded import plain_defaults
from ..format.description import state_since
from ..format.values import with_defaults, with_lists
from ..load import Checkpoint
from ..names import CodeNames
from ..values import DataWriter
from .tree import in_order, shape_text

WINDOW = 1 << 18  # elements of each checkpoint that are in memory
_ABSENT = "absent"


@dataclass(frozen=True)
class Spot:
    """One element: its index and its two values."""

    index: tuple[int, ...]
    a: float
    b: float

    def __str__(self):
        return f"[{', '.join(map(str, self.index))}]: {self.a!s} and {self.b!s}"


@dataclass
class TensorDifference:
    """How one tensor differs between a and b; with num_different = 0 not beyond the tolerance."""

    tensor: str
    num_elements: int
    num_different: int = 0  # elements that differ beyond the tolerance
    num_unequal: int = 0  # elements that differ at all
    first: Spot | None = None  # beyond the tolerance, in C order
    absolute: float = 0.0  # the largest |a - b|; infinite if one of them is not a number
    absolute_at: Spot | None = None
    relative: float = 0.0  # the largest |a - b| / max(|a|, |b|)
    relative_at: Spot | None = None
    magnitude: float = field(default=0.0, repr=False)  # the largest finite |a| or |b|


@dataclass(frozen=True)
class Comparison:
    """All that differs. Tensors in natural order: blocks.2 before blocks.10.

    is_equal    nothing differs, or values within the tolerance only
    """

    descriptions: list[tuple[str, object, object]]  # (what, in a, in b)
    only_a: list[str]
    only_b: list[str]
    forms: list[tuple[str, str, str]]  # (tensor, shape and dtype in a, in b)
    tensors: list[TensorDifference]  # those with values that differ beyond the tolerance
    num_compared: int
    num_elements: int
    tolerance: float = 0.0
    within: list[TensorDifference] = field(default_factory=list)  # those that differ within it only

    @property
    def is_equal(self) -> bool:
        return not (self.descriptions or self.only_a or self.only_b or self.forms or self.tensors)


def compare(
    a: Checkpoint, b: Checkpoint, *, tolerance: float = 0.0, model_only: bool = False
) -> Comparison:
    """Compare two checkpoints, in memory for a few windows. No communication.

    tolerance   differences up to this part of a tensor's largest magnitude count as equal
    model_only  leave out optimizer state, step, seeds and whatever else a run goes on from
    Errors: CheckpointError if a file is not what its manifest says.
    """
    tables = [
        {
            tensor: entry
            for tensor, entry in checkpoint.manifest["tensors"].items()
            if not model_only or tensor.startswith(("model/", "buffers/"))
        }
        for checkpoint in (a, b)
    ]
    shared = in_order(tables[0].keys() & tables[1].keys())
    forms = [
        (tensor, *(_form(table[tensor]) for table in tables))
        for tensor in shared
        if _form(tables[0][tensor]) != _form(tables[1][tensor])
    ]
    same_shape = [
        tensor for tensor in shared if tables[0][tensor]["shape"] == tables[1][tensor]["shape"]
    ]
    differences = [compare_tensor(a, b, tensor, tolerance) for tensor in same_shape]
    return Comparison(
        _different_descriptions(a, b, model_only),
        in_order(tables[0].keys() - tables[1].keys()),
        in_order(tables[1].keys() - tables[0].keys()),
        forms,
        [difference for difference in differences if difference.num_different],
        len(same_shape),
        sum(difference.num_elements for difference in differences),
        tolerance,
        [
            difference
            for difference in differences
            if difference.num_unequal and not difference.num_different
        ],
    )


def _form(entry: dict) -> str:
    return f"{shape_text(entry['shape'])} {entry['dtype']}"


def _different_descriptions(a, b, model_only) -> list[tuple[str, object, object]]:
    described = [_description(checkpoint.manifest, model_only) for checkpoint in (a, b)]
    names = dict.fromkeys(name for each in described for name in each)
    both = [(name, *(each.get(name, _ABSENT) for each in described)) for name in names]
    return [entry for entry in both if entry[1] != entry[2]]


def _description(manifest: dict, model_only: bool) -> dict:
    """Return what two checkpoints should agree on beside their tensors.

    The seed of a model only says how its weights began.
    """
    described = manifest["model"]
    model = {"model": described["class"]}
    settings = {**_defaults(str(described.get("import"))), **described["configuration"]}
    for name, value in with_defaults(settings, _defaults).items():
        if not (model_only and name == "seed"):
            model[f"model.{name}"] = with_lists(value)
    model["active_features"] = manifest["active_features"]
    return model if model_only else {**_description_of_run(manifest), **model}


@cache
def _defaults(name: str) -> dict:
    """Return {argument: data} that the class of this name can be made without, such as those that
    are younger than a checkpoint; {} of a class that is not known here.
    """
    with suppress(CheckpointError):
        return DataWriter().data(plain_defaults(CodeNames("", Trust()).recorded(name)))
    return {}


def _description_of_run(manifest: dict) -> dict:
    """Return what a run goes on from, beside its tensors.

    Some of it may be missing, which means its first value.
    """
    optimizer = manifest["optimizer"]
    return {
        "step": manifest["step"],
        "seed": manifest["seed"],
        "optimizer": optimizer and optimizer["rule"],
        "samples_seen": manifest["samples_seen"],
        "skipped_steps": manifest.get("skipped_steps", 0),
        "optimizer.state_since": state_since(manifest),
        "loss_scale": manifest.get("loss_scale"),
        "data_position": _without_settings(manifest.get("data_position") or {}),
    }


def _without_settings(position: dict) -> dict:
    """Return where the data go on, without the settings of the steps that led there."""
    return {name: value for name, value in position.items() if name != "settings"}


# ---- values --------------------------------------------------------------------------------------


def compare_tensor(
    a: Checkpoint, b: Checkpoint, tensor: str, tolerance: float = 0.0
) -> TensorDifference:
    """Compare the values of one tensor, of the same shape in both.

    Numbers that are NaN in both are equal, and so are zeros of both signs.
    """
    found = TensorDifference(tensor, prod(a.manifest["tensors"][tensor]["shape"]))
    for window in _windows(a, b, tensor):
        _measure(found, *window, is_final=tolerance == 0)
    limit = tolerance * found.magnitude
    if tolerance and found.absolute > limit:  # the magnitude was not known before
        for box, x, y in _windows(a, b, tensor):
            _count(found, box, x, y, _distances(x, y) > limit)
    return found


def _windows(a, b, tensor):
    """Yield (box, values in a, values in b) in C order; the boxes tile the tensor.

    A scalar becomes an array of one element.
    """
    shape = tuple(a.manifest["tensors"][tensor]["shape"])
    size = prod(shape)
    for start in range(0, size, WINDOW):
        for box in flat_range_to_boxes(shape, start, min(start + WINDOW, size)):
            x, y = (numpy.atleast_1d(each.read_box(tensor, box)) for each in (a, b))
            yield box, x, y


def _distances(x, y):
    """Return |x - y| in float64: 0 if equal or both NaN, infinite if one is not finite."""
    is_same = (x == y) | ((x != x) & (y != y))
    with numpy.errstate(invalid="ignore"):
        distances = numpy.abs(x.astype(numpy.float64) - y)
    distances[is_same] = 0
    distances[numpy.isnan(distances)] = inf
    return distances


def _measure(found: TensorDifference, box, x, y, is_final: bool) -> None:
    """Take one window into account; is_final: every difference counts."""
    sizes = numpy.maximum(numpy.abs(x), numpy.abs(y)).astype(numpy.float64)
    found.magnitude = max(found.magnitude, float(sizes.max(where=numpy.isfinite(sizes), initial=0)))
    distances = _distances(x, y)
    found.num_unequal += int((distances > 0).sum())
    largest = numpy.unravel_index(distances.argmax(), distances.shape)
    if distances[largest] > found.absolute:
        found.absolute, found.absolute_at = float(distances[largest]), _spot(box, x, y, largest)
    relative = numpy.divide(
        distances, sizes, out=distances.copy(), where=numpy.isfinite(distances) & (distances > 0)
    )
    largest = numpy.unravel_index(relative.argmax(), relative.shape)
    if relative[largest] > found.relative:
        found.relative, found.relative_at = float(relative[largest]), _spot(box, x, y, largest)
    if is_final:
        _count(found, box, x, y, distances > 0)


def _count(found, box, x, y, is_different) -> None:
    found.num_different += int(is_different.sum())
    if found.first is None and is_different.any():
        first = numpy.unravel_index(is_different.argmax(), is_different.shape)
        found.first = _spot(box, x, y, first)


def _spot(box, x, y, index) -> Spot:
    place = tuple(int(i) + start for i, start in zip(index, box.offset))
    return Spot(place, x[index], y[index])


# ---- text ----------------------------------------------------------------------------------------


def comparison_text(found: Comparison) -> str:
    """Return the comparison as text: what differs beside the numbers, then the numbers."""
    lines = [f"{name}: {a} and {b}" for name, a, b in found.descriptions]
    lines += _list("only in the first", found.only_a) + _list("only in the second", found.only_b)
    lines += [f"{tensor}: {a} and {b}" for tensor, a, b in found.forms]
    return "\n".join(lines + _values_text(found))


def _list(title, tensors) -> list[str]:
    if not tensors:
        return []
    rest = [f"  ... and {len(tensors) - 8} more"] if len(tensors) > 8 else []
    return [f"{title}: {len(tensors)} tensors", *(f"  {name}" for name in tensors[:8]), *rest]


def _values_text(found: Comparison) -> list[str]:
    if not found.num_compared:
        return ["no tensor is in both in the same shape"]
    if not (found.tensors or found.within):
        return [
            f"{found.num_compared} tensors of {found.num_elements:,} elements: all values equal"
        ]
    largest = _largest_text(found.tensors or found.within)
    return (_beyond_text(found) if found.tensors else [_within_text(found)]) + largest


def _within_text(found: Comparison) -> str:
    num_unequal = sum(difference.num_unequal for difference in found.within)
    return (
        f"{found.num_compared} tensors: equal within {found.tolerance:g} of each tensor's largest "
        f"magnitude; {len(found.within)} differ, in {num_unequal:,} of {found.num_elements:,} "
        "elements"
    )


def _beyond_text(found: Comparison) -> list[str]:
    num_different = sum(difference.num_different for difference in found.tensors)
    beyond = f" beyond {found.tolerance:g} of its largest magnitude" if found.tolerance else ""
    others = [f"{len(found.within)} more tensors differ within it"] if found.within else []
    return [
        f"{len(found.tensors)} of {found.num_compared} tensors differ{beyond}, "
        f"in {num_different:,} of {found.num_elements:,} elements",
        *others,
        f"first difference    {found.tensors[0].tensor}{found.tensors[0].first}",
    ]


def _largest_text(tensors: list[TensorDifference]) -> list[str]:
    absolute = max(tensors, key=lambda difference: difference.absolute)
    relative = max(tensors, key=lambda difference: difference.relative)
    return [
        f"largest absolute    {absolute.absolute:.6g} in {absolute.tensor}{absolute.absolute_at}",
        f"largest relative    {relative.relative:.6g} in {relative.tensor}{relative.relative_at}",
    ]
