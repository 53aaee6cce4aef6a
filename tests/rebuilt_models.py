"""Models of one's own, each made with other arguments than its defaults, in each way that Python
allows: sk.load gives them back as they were, or says why it cannot.
"""

import argparse
import collections
import dataclasses
import enum
import fractions
import functools
import math
import pathlib
import types
from typing import Any, Generic, NamedTuple, TypeVar

import numpy

from shardkit import nn
from shardkit.nn import Buffer, Parameter, ops
from shardkit.testing.nn import Fill, Normal

WIDTH, SCALE = 16, 3.0
T = TypeVar("T")


class Kind(enum.Enum):
    SOFT = "soft"
    HARD = "hard"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 4


class Way(enum.Flag):
    UP = 1
    DOWN = 2


def square(x):
    return x * x


doubled = lambda x: x * 2.0  # noqa: E731 - a lambda with a name in its module


def shifted(x, by=0.0):
    return x + by


def scaled_by(scale):
    def scaled(x):
        return x * scale

    return scaled


@dataclasses.dataclass
class Sizes:
    width: int = 4
    scales: list = dataclasses.field(default_factory=lambda: [1.0])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    scale: float = 1.0
    act: Any = ops.relu


class Point(NamedTuple):
    scale: float = 1.0
    offset: float = 0.0


class Chain:
    def __init__(self, link):
        self.link = link


class Settings:
    def __init__(self, scale=1.0):
        self.scale = scale
        self.inner = types.SimpleNamespace(offset=2.0)


class Base(nn.Module):
    """One map; a subclass says what becomes of it."""

    loss = nn.MeanSquaredError()

    def forward(self, x):
        return self.after(self.map(x))

    def after(self, y):
        return y


class Scalar(Base):
    def __init__(self, scale=1.0, name="relu", flag=False, none=7):
        self.map = nn.Linear(8, 2)
        self.scale, self.name, self.flag, self.none = scale, name, flag, none

    def after(self, y):
        y = getattr(ops, self.name)(y) * float(self.scale) + (2.0 if self.flag else 0.0)
        return y if self.none is None else y * float(self.none)


class Unkept(Base):
    """Its arguments show in nothing but what they made."""

    def __init__(self, scale=1.0):
        self.map = nn.Linear(8, 2)
        self.after = square if scale > 1 else doubled


class GlobalDefault(Base):
    def __init__(self, scale=SCALE):
        self.map, self.scale = nn.Linear(8, 2), scale

    def after(self, y):
        return y * self.scale


class OfEnum(Base):
    def __init__(self, kind=Kind.SOFT, level=Level.LOW, *, ways=Way.UP):
        self.map, self.kind, self.level, self.ways = nn.Linear(8, 2), kind, level, ways

    def after(self, y):
        y = ops.tanh(y) if self.kind is Kind.HARD else y
        return y * float(self.level) + float(self.ways.value)


class OfFunction(Base):
    def __init__(self, act=ops.relu):
        self.map, self._act = nn.Linear(8, 2), act

    def after(self, y):
        return self._act(y)


class OfClass(Base):
    def __init__(self, norm=nn.RMSNorm, make=dict):
        self.map, self.norm, self.made = nn.Linear(8, 4), norm(4), make(a=3.0)

    def after(self, y):
        return self.norm(y) * self.made["a"]


class OfSizes(Base):
    def __init__(self, sizes=None, frozen=Frozen(), point=Point()):  # noqa: B008
        sizes = sizes or Sizes()
        self.map = nn.Linear(8, sizes.width)
        self.scales, self.frozen, self.point = sizes.scales, frozen, point

    def after(self, y):
        for scale in self.scales:
            y = y * scale
        return self.frozen.act(y) * self.frozen.scale * self.point.scale + self.point.offset


class OfObject(Base):
    def __init__(self, settings=None, args=None):
        self.map, self.settings, self.args = nn.Linear(8, 2), settings or Settings(), args

    def after(self, y):
        return y * self.settings.scale * self.args.scale + self.settings.inner.offset


class OfContainers(Base):
    def __init__(self, layers=(1.0,), table=None, names=frozenset(), path=None):
        self.map = nn.Linear(8, 2)
        self.layers, self.table, self.names, self.path = layers, table, names, path

    def after(self, y):
        for scale, offset in self.layers:
            y = y * scale + offset
        return y * self.table[1]["deep"][0] + float(len(self.names) + len(self.path.parts))


class Consumer(Base):
    """It takes what it is given apart."""

    def __init__(self, widths=(4, 4), **more):
        self.first = nn.Linear(8, widths.pop(0))
        self.map = nn.Linear(8, widths.pop(0))
        self.more = {name: more.pop(name) for name in list(more)}
        widths.append(99)

    def after(self, y):
        return y * self.more["scale"] + float(len(self.more))


class Variadic(Base):
    def __init__(self, first, /, second=2.0, *rest, last=1.0, **named):
        self.map = nn.Linear(8, 2)
        self.factors = [first, second, *rest, last, *named.values()]

    def after(self, y):
        for factor in self.factors:
            y = y * factor
        return y


class Passing(Variadic):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = 3.0

    def after(self, y):
        return super().after(y) + self.extra


def doubling(init):
    @functools.wraps(init)
    def wrapped(self, *args, **kwargs):
        init(self, *args, **{**kwargs, "scale": 2 * kwargs.get("scale", 2.0)})

    return wrapped


class Wrapped(Base):
    @doubling
    def __init__(self, width, scale=1.0):
        self.map, self.scale = nn.Linear(8, width), scale

    def after(self, y):
        return y * self.scale


class OfArray(Base):
    def __init__(self, mean=None, table=None):
        self.map, self._mean, self._table = nn.Linear(8, 2), mean, table

    def after(self, y):
        return (y - self._mean) * getattr(self._table, "values", self._table)[:2]


class LargeTable:
    """A table of which two numbers are used."""

    def __init__(self, values):
        self.values = values


class OfNumbers(Base):
    def __init__(self, width, scale, dtype="float32", z=0j, part=None, span=None):
        self.map = nn.Linear(8, int(width), dtype=dtype)
        self.scale, self.z, self.part, self.span = float(scale), z, part, span

    def after(self, y):
        return y * (self.scale * self.z.real * float(self.part) * len(self.span))


class OfInfinity(Base):
    def __init__(self, top=1.0, bottom=-1.0, way=0.0):
        self.map, self.top, self.bottom = nn.Linear(8, 2), top, bottom
        self.sign = math.copysign(1.0, way)

    def after(self, y):
        return ops.clip(y * 9.0, self.bottom, self.top) * self.sign


class OfPartial(Base):
    def __init__(self, act=None):
        self.map, self._act = nn.Linear(8, 2), act

    def after(self, y):
        return self._act(y)


class OfModules(Base):
    def __init__(self, encoder, heads, shared=None):
        self.map, self.heads, self.shared = encoder, nn.ModuleList(heads), shared
        self.again = shared

    def after(self, y):
        for head in self.heads:
            y = head(y)
        return y if self.shared is None else self.again(self.shared(y))


class OfParameter(Base):
    def __init__(self, scale, mean, loss=None):
        self.map, self.scale, self.mean = nn.Linear(8, 2), scale, mean
        self.loss = loss

    def after(self, y):
        return y * self.scale - self.mean


class ClassAttribute(Base):
    factor = 5.0

    def __init__(self):
        self.map = nn.Linear(8, 2)

    def after(self, y):
        return y * self.factor


class OfGlobal(Base):
    def __init__(self):
        self.map = nn.Linear(8, 2)

    def after(self, y):
        return y * SCALE


class Property(Base):
    def __init__(self, scale=1.0):
        self.map = nn.Linear(8, 2)
        self.scale = scale

    @property
    def scale(self):
        return self._scale * 2

    @scale.setter
    def scale(self, value):
        self._scale = value + 1

    def after(self, y):
        return y * self.scale


class Counting(Base):
    """Its __init__ has an effect: each one is given another scale."""

    made = 0

    def __init__(self):
        Counting.made += 1
        self.map, self.scale = nn.Linear(8, 2), float(Counting.made)

    def after(self, y):
        return y * self.scale


class MutableDefault(Base):
    def __init__(self, scales=[]):  # noqa: B006
        scales.append(2.0)
        self.map, self.scale = nn.Linear(8, 2), sum(scales)

    def after(self, y):
        return y * self.scale


@dataclasses.dataclass(eq=False)
class Data(Base):
    scale: float = 1.0
    act: Any = None

    def __post_init__(self):
        self.map = nn.Linear(8, 2)

    def after(self, y):
        return self.act(y) * self.scale


class Typed(Base, Generic[T]):
    def __init__(self, scale: T):
        self.map, self.scale = nn.Linear(8, 2), scale

    def after(self, y):
        return y * self.scale


class Renewed(Scalar):
    """A __new__ of its own, which changes what __init__ is given."""

    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)


class Mixin:
    def __init__(self, *args, offset=0.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.offset = offset

    def after(self, y):
        return super().after(y) + self.offset


class Mixed(Mixin, Scalar):
    pass


class Blocks(nn.Module):
    """Blocks and no forward."""

    loss = nn.MeanSquaredError()

    def __init__(self, width=32):
        self.enter, self.leave = nn.Linear(8, width), nn.Linear(width, 1)

    def blocks(self):
        return [("enter", self.enter), ("leave", self.leave)]


class Longer(Blocks):
    """A forward over inherited blocks."""

    def __init__(self, width=32, scale=1.0):
        super().__init__(width)
        self.scale = scale

    def forward(self, x):
        return super().forward(x) * self.scale


class Residual(nn.Sequential):
    loss = nn.MeanSquaredError()

    def forward(self, x):
        return super().forward(x) + x


class Layer(nn.Module):
    def __init__(self, width):
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(ops.gelu(self.up(self.norm(x))))


class Scaled(nn.Module):
    def __init__(self, scale=1.0):
        self.scale, self.offset = scale, 0.0

    def forward(self, x):
        return x * self.scale + self.offset


class Cached(Base):
    """It keeps a table of what it has seen."""

    def __init__(self):
        self.map, self._table = nn.Linear(8, 8), None

    def after(self, y):
        if self._table is None:
            self._table = numpy.arange(y.shape[1], dtype="float32")
        return y + nn.Tensor(self._table)


class Hidden(Base):
    """It draws an array that nobody passed."""

    def __init__(self, count=4):
        self.map = nn.Linear(8, count)
        self._noise = numpy.random.default_rng().normal(size=count).astype("float32")

    def after(self, y):
        return y * self._noise


def _shared():
    layer = nn.Linear(2, 2)
    return OfModules(nn.Linear(8, 2), [layer, nn.Tanh()], shared=layer)


def _changed(model, **attributes):
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def _mutated():
    sizes = Sizes(4, [2.0])
    model = OfSizes(sizes)
    model.scales = list(model.scales)  # its own
    sizes.width, sizes.scales = 6, [7.0]
    return model


def _list_changed_later():
    layers = [(2.0, 1.0)]
    model = OfContainers(list(layers), {1: {"deep": (5.0,)}}, {"a"}, pathlib.PurePath("a/b"))
    layers.append((9.0, 9.0))
    return model


def _frozen_encoder():
    encoder = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2))
    encoder.freeze()
    return OfModules(encoder, (nn.Linear(2, 2) for _ in range(2)))


def _local():
    class Local(Scalar):
        pass

    return Local(2.0)


# {name: function that makes the model}: those that come back
COME_BACK = {
    "numbers and words": lambda: Scalar(2.5, "tanh", True, None),
    "some by name": lambda: Scalar(name="tanh", none=3),
    "not kept": lambda: Unkept(2.0),
    "a default of a global": lambda: GlobalDefault(),
    "enums": lambda: OfEnum(Kind.HARD, Level.HIGH, ways=Way.DOWN),
    "an operation": lambda: OfFunction(ops.tanh),
    "a function": lambda: OfFunction(square),
    "a lambda with a name": lambda: OfFunction(doubled),
    "a static method": lambda: OfFunction(nn.Tanh()),
    "classes": lambda: OfClass(nn.LayerNorm, collections.OrderedDict),
    "dataclasses": lambda: OfSizes(Sizes(6, [2.0, 3.0]), Frozen(2.0, ops.tanh), Point(2.0, 1.0)),
    "a dataclass that changes later": _mutated,
    "objects": lambda: OfObject(Settings(3.0), argparse.Namespace(scale=2.0)),
    "containers": _list_changed_later,
    "a list that it empties": lambda: Consumer([4, 2], scale=3.0, other=2),
    "variadic": lambda: Variadic(2.0, 3.0, 4.0, 5.0, last=0.5, more=2.0),
    "positional only": lambda: Variadic(3.0),
    "passed on": lambda: Passing(2.0, 3.0, 4.0, last=2.0, other=0.5),
    "a wrapped constructor": lambda: Wrapped(3, scale=5.0),
    "arrays": lambda: OfArray(numpy.full(2, 3.0, "f4"), numpy.arange(2, dtype="f4") + 1),
    "numbers of numpy": lambda: OfNumbers(
        numpy.int64(3),
        numpy.float64(2.5),
        numpy.dtype("float32"),
        2 + 1j,
        numpy.float32(0.5),
        range(3),
    ),
    "infinities": lambda: OfInfinity(math.inf, -math.inf, -0.0),
    "partial functions": lambda: OfPartial(functools.partial(shifted, by=3.0)),
    "modules": lambda: OfModules(
        nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)), [nn.Linear(2, 3), Layer(3)]
    ),
    "a module twice": _shared,
    "modules and a module list": lambda: OfModules(
        nn.Linear(8, 2), nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    ),
    "parameters": lambda: OfParameter(
        Parameter(2, Normal(1.0)), Buffer(2, Fill(3.0)), nn.HuberLoss(delta=2.0)
    ),
    "an attribute of the class": ClassAttribute,
    "a global in forward": OfGlobal,
    "a property": lambda: Property(4.0),
    "an effect": Counting,
    "a default that grows": MutableDefault,
    "a dataclass": lambda: Data(3.0, act=ops.tanh),
    "a generic class": lambda: Typed[float](2.0),
    "a mixin": lambda: Mixed(2.0, "tanh", offset=3.0),
    "blocks without forward": lambda: Blocks(8),
    "a forward over inherited blocks": lambda: Longer(8, scale=3.0),
    "layers in a row": lambda: nn.Sequential(nn.Linear(8, 8), Layer(8), nn.Linear(8, 1)),
    "a subclass of Sequential": lambda: Residual(nn.Linear(8, 8), nn.Tanh()),
    "a cache": Cached,
    "random numbers": Hidden,
    "changed later": lambda: _changed(Scalar(), scale=3.0, name="tanh"),
    "an array set later": lambda: _changed(
        OfArray(0.0, numpy.ones(2, "f4")), _mean=numpy.full(2, 9.0, "f4")
    ),
    "a function set later": lambda: _changed(OfFunction(), _act=square),
}
# {name: (function that makes the model, what is said)}: those that cannot
REFUSED = {
    "a lambda": (lambda: OfFunction(lambda x: x * 3.0), "act = .*lambda.*factory="),
    "a closure": (lambda: OfFunction(scaled_by(3.0)), "act = .*scaled.*factory="),
    "a partial lambda": (lambda: OfPartial(functools.partial(lambda x: x)), "act = .*factory="),
    "an open file": (lambda: OfFunction(_File()), "act.*TextIOWrapper.*factory="),
    "a generator": (_frozen_encoder, "heads = .*generator.*factory="),
    "a large array": (
        lambda: OfArray(1.0, LargeTable(numpy.ones(1 << 19, "f4"))),
        "table.*array .524288.*factory=",
    ),
    "a fraction set later": (
        lambda: _changed(Scalar(), scale=fractions.Fraction(1, 2)),
        "scale.*fractions.Fraction.*factory=",
    ),
    "a class in a function": (_local, "cannot be imported.*factory="),
    "a __new__ of its own": (lambda: Renewed(3.0), "__new__.*factory="),
    "a closure set later": (
        lambda: _changed(OfFunction(), _act=scaled_by(3.0)),
        "_act = .*factory=",
    ),
    "another layer in its place": (
        lambda: _changed(OfModules(nn.Linear(8, 2), [nn.ReLU()]), heads=nn.ModuleList([nn.Tanh()])),
        "class.*Tanh.*factory=",
    ),
}


class _File:
    """A function that holds an open file."""

    def __init__(self):
        self.file = open(__file__)  # noqa: SIM115

    def __call__(self, x):
        return x
