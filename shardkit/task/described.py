"""What is known of the rows of a table, and how a model and its metrics meet them.

rows in the units of the file --Described--> Scaled, what a model takes
predictions --heads.py--> metrics and what is written, in the units of the file
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy

from ..annotations import FilePath
from ..data.raw.encodings import Classes, ColumnEncoder, Numbers, columns_of, from_json, to_json
from ..data.samples import Samples, SamplesOf
from ..data.scaling import Scaling, narrowed
from ..data.tables import MOST_CLASSES
from ..errors import InputError
from ..files.reading import parsed_json, understood, wanted, wanted_count

DESCRIPTION = "table.json"


@dataclass(frozen=True)
class Described:
    """What one pass over the rows of a run has found.

    features, targets  as data.features takes them; names of the columns of x and y
    classes            how many; 0 of regression
    class_counts       in the training rows
    x_shape, y_shape   of a row, where a row is an array; () for vectors, and y of classes
    encoder            of a table of columns; None of arrays, and of runs of before
    left_out           {column: why it is no feature}
    """

    features: tuple[str, ...]
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    x: Scaling
    y: Scaling
    classes: int
    class_counts: tuple[int, ...]
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    encoder: ColumnEncoder | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def columns(self) -> ColumnEncoder:
        """How a table of columns is read: as it was fitted, or what runs of before had."""
        if self.encoder is not None:
            return self.encoder
        x = map(Numbers, self.feature_names, self.x.center.tolist(), self.x.scale.tolist())
        if self.classes:
            numbers = tuple(map(str, range(self.classes)))
            return ColumnEncoder(tuple(x), (Classes(self.target_names[0], numbers),))
        y = map(Numbers, self.target_names, self.y.center.tolist(), self.y.scale.tolist())
        return ColumnEncoder(tuple(x), tuple(y))

    @property
    def looked_up_width(self) -> int:
        """How many columns x has once ids have become vectors."""
        widths = [width - 1 for _, width in self.columns.embeddings]
        return len(self.feature_names) + sum(widths)

    @property
    def units(self) -> "ColumnEncoder | Scaling":
        """What brings predictions back into the units of the file."""
        return self.encoder or self.y

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers; () where they have none."""
        return self.encoder.class_names if self.encoder else ()

    def __str__(self):
        if self.encoder is None:
            return f"{len(self.feature_names)} columns of x: {', '.join(self.feature_names)[:300]}"
        lines = ["features", columns_of(self.encoder.features)]
        lines += [f"  left out: {name}, since {why}" for name, why in self.left_out.items()]
        return "\n".join([*lines, "predicted", columns_of(self.encoder.targets)])

    def to_json(self) -> bytes:
        """Return it as a file."""
        content = {**vars(self), "x": self.x.to_lists(), "y": self.y.to_lists()}
        content.pop("encoder")
        if self.encoder is not None:
            for side in _SIDES:
                content[f"{side}_as"] = list(map(to_json, getattr(self.encoder, side)))
        return json.dumps(content, indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes, path: FilePath = "") -> "Described":
        """Return what to_json() described. Errors: InputError if it is something else."""
        values = parsed_json(content, path)
        with understood(path):
            found = {name: _tuple_of(kind, values, name, path) for name, kind in _LISTS.items()}
            classes = wanted_count(values["classes"], path, "classes", MOST_CLASSES)
            x, y = (_scaling(values[name], path, name) for name in ("x", "y"))
            encoder, left_out = _encoder(values, path), dict(values.get("left_out", {}))
        if encoder is not None and len(encoder.class_names) != classes:
            raise InputError(f"{path}: classes = {classes} of other names", path, "classes")
        return cls(**found, x=x, y=y, classes=classes, encoder=encoder, left_out=left_out)


def _encoder(values: dict, path) -> ColumnEncoder | None:
    """Return the encoder in a file; None where there is none."""
    if "features_as" not in values:
        return None
    sides = [wanted(values[f"{side}_as"], list, path, side) for side in _SIDES]
    features, targets = (tuple(from_json(each, path) for each in side) for side in sides)
    if not features or not targets:
        raise InputError(f"{path} has no columns of x or y", path, "features_as")
    return ColumnEncoder(features, targets)


_SIDES = ("features", "targets")
_LISTS = {
    "features": str,
    "feature_names": str,
    "target_names": str,
    "class_counts": int,
    "x_shape": int,
    "y_shape": int,
}


def _tuple_of(kind: type, values: dict, name: str, path) -> tuple:
    """Return a list of a file, of texts or counts. Older files lack what has a default."""
    found = wanted(
        values.get(name, []) if name.endswith("shape") else values[name], list, path, name
    )
    for value in found:
        if kind is int:
            wanted_count(value, path, name)
        else:
            wanted(value, kind, path, name)
    return tuple(found)


def _scaling(lists: dict, path, name: str) -> Scaling:
    for part in ("center", "scale"):
        for value in wanted(lists[part], list, path, f"{name}.{part}"):
            wanted(value, float, path, f"{name}.{part}")
    wanted(lists.get("axis", -1), int, path, f"{name}.axis")
    return Scaling.from_lists(lists)


class Scaled(SamplesOf):
    """Rows of a table as a model takes them: scaled, float32. Their hash is that of the rows, from
    which the scaling follows.
    """

    def __init__(self, rows: Samples, described: Described):
        super().__init__(rows)
        self._described = described

    def read(self, numbers, draw=None, part=None):
        is_vector = not self._described.x_shape  # which no ranks can share
        x, y = self._read(numbers, draw, None if is_vector else part)
        x = self._described.x.scaled(x)
        if self._described.classes or not y.shape[1]:  # no targets, where x alone is wanted
            return x, y
        if self._described.y_shape:
            return x, self._described.y.scaled(y)
        targets = len(self._described.target_names)
        scaled = narrowed(self._described.y, y[:, :targets])
        return x, numpy.concatenate([scaled, y[:, targets:]], 1).astype(numpy.float32)
