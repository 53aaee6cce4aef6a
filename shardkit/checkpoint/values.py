"""Values of Python as data, to be stored with a model: nothing that is stored runs.

    None, True, 3, 0.5, "gelu", [...], {"a": ...}     as JSON has them
    everything else                                   {"$": kind, "of": ...}

    (1, 2)                {"$": "tuple", "of": [1, 2]}
    nn.ops.gelu           {"$": "named", "of": "shardkit.nn.ops.activation:gelu"}
    nn.Linear(8, 1)       {"$": "made", "class": "shardkit.nn.layers.basic:Linear", "of": {...}}
    the same again        {"$": "same", "of": 0}      the first that was made
    lambda x: x           {"$": "lost", "of": "the function ..."}

Functions and classes are looked up by name when the data is read, where the caller's trust allows
it (names.py).
"""

import base64
import inspect
import zlib
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from functools import partial
from math import isfinite
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy

from ..array.backend import is_device_array, to_host
from ..errors import CheckpointError
from ..nn.autograd import Tensor
from ..nn.kept import (
    ATOMS,
    MOST_BYTES,
    Lost,
    Making,
    is_made,
    is_named,
    is_named_tuple,
    is_plain,
    lost_function,
    making_of,
    name_of,
    state_of,
)
from ..nn.module import Buffer, Parameter
from ..nn.recorded import arguments_of
from .format.values import KIND

if TYPE_CHECKING:
    from .names import CodeNames

_SEQUENCES: dict[str, Callable[[list], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "slice": lambda parts: slice(*parts),
    "dict": dict,
    "OrderedDict": OrderedDict,
}
_MOST_PARTS = 100_000  # objects that are described
_MOST_ELEMENTS = 10_000  # of a list of an attribute
_NUMBERS = "biufcSUmM"  # kinds of dtypes that are stored
_TENSORS = {"Parameter": Parameter, "Buffer": Buffer}


# ---- writing -------------------------------------------------------------------------------------


class DataWriter:
    """Turns values into data; what is made once and met again is the same.

    paths        {id: path in the model} of modules, parameters and buffers that are named and not
                 described
    most_bytes   of an array that is written whole; of a larger one the checksum
    makers       {name: class} of what is made, as far as it was described
    """

    def __init__(self, paths: dict[int, str] | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._paths = {} if paths is None else paths
        self._most_bytes = most_bytes
        self.makers: dict[str, type] = {}
        self._met: dict[int, tuple[int, Any]] = {}  # the value itself too: ids stay its own

    def data_of_any(self, value: Any) -> Any:
        """Return the value as data: of a long list its checksum, of one without an end a Lost."""
        if type(value) in (list, tuple) and len(value) > _MOST_ELEMENTS:
            if ATOMS.issuperset(map(type, value)):
                checksum = f"{zlib.crc32(repr(value).encode()):08x}"
                return {"shape": [len(value)]} | _of("large", checksum)
        try:
            return self.data(value)
        except RecursionError:
            return _lost(Lost(f"a {type(value).__qualname__} that is nested too deep"))

    def data(self, value: Any) -> Any:
        """Return the value as data, which JSON can hold."""
        cls = type(value)
        if value is None or cls in (bool, int, str):
            return value
        if cls is float:
            return value if isfinite(value) else _of("float", repr(value))
        if cls is list:
            return list(map(self.data, value))
        if cls is dict and all(type(key) is str for key in value) and KIND not in value:
            return {key: self.data(entry) for key, entry in value.items()}
        if id(value) in self._paths:
            return _of("part", self._paths[id(value)])
        return self._other(value, cls)

    def _other(self, value, cls):
        if isinstance(value, (Making, Tensor)) or is_made(value):
            return self._once(value)
        if isinstance(value, Enum):
            return _of("enum", value.name, cls) if _is_found(cls) else _lost(Lost(f"a {cls}"))
        if isinstance(value, (numpy.ndarray, numpy.generic)) or is_device_array(value):
            return self._array(value)
        if isinstance(value, numpy.dtype):
            return _of("dtype", value.str) if value.kind in _NUMBERS else _lost(Lost("a dtype"))
        if isinstance(value, (type, FunctionType, BuiltinFunctionType, numpy.ufunc)):
            return self._named(value)
        if isinstance(value, Lost):
            return _lost(value)
        if isinstance(value, PurePath):
            return _of("path", str(value))
        return self._container(value, cls)

    def _container(self, value, cls):
        if cls is bytes:
            return _of("bytes", _text(value))
        if cls in (tuple, complex, range, slice):
            return _of(cls.__name__, list(map(self.data, _parts(value))))
        if cls in (set, frozenset):
            return _of(cls.__name__, sorted(map(self.data, value), key=repr))
        if cls in (dict, OrderedDict, MappingProxyType):
            kind = "dict" if cls is MappingProxyType else cls.__name__
            return _of(kind, [[self.data(key), self.data(value[key])] for key in value])
        if cls is partial:
            parts = [value.func, value.args, value.keywords]
            return _of("partial", list(map(self.data, parts)))
        if is_named_tuple(cls):
            return _of("namedtuple", list(map(self.data, value)), cls)
        return self._once(value)

    def _once(self, value):
        """Describe what is told by its identity: the first time whole."""
        if id(value) in self._met:
            return _of("same", self._met[id(value)][0])
        if len(self._met) >= _MOST_PARTS:
            return _lost(Lost(f"one of more than {_MOST_PARTS} parts"))
        self._met[id(value)] = len(self._met), value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Making):
            return self._made(value)
        if is_made(value):
            return self._made(making_of(value))
        state = state_of(value)
        cls = type(value)
        if state is None or not _is_found(cls):
            return _lost(Lost(f"a {cls.__module__}.{cls.__qualname__}"))
        return _of("object", {name: self.data(entry) for name, entry in state.items()}, cls)

    def _made(self, making):
        if isinstance(making, Lost) or not _is_found(making.of):
            return _lost(making if isinstance(making, Lost) else _lost_class(making.of))
        arguments = arguments_of(making)
        self.makers[_named_class(making.of)] = making.of
        return _of("made", {name: self.data(v) for name, v in arguments.items()}, making.of)

    def _tensor(self, value):
        kind = type(value).__name__
        if kind not in _TENSORS:
            return _of("tensor", self._array(value.array)) | {"kind": "Tensor"}
        given = [list(value.shape), self.data(value.init), str(value.dtype)]
        return _of("tensor", given) | {"kind": kind}

    def _array(self, value):
        if is_device_array(value):
            value = to_host(value)
        values = numpy.asarray(value)
        if values.dtype.kind not in _NUMBERS:
            return _lost(Lost(f"an array of {values.dtype}"))
        form = {"dtype": values.dtype.str, "shape": list(values.shape)}
        if values.nbytes > self._most_bytes:
            return form | _of("large", _checksum(values))
        scalar = {"scalar": True} if isinstance(value, numpy.generic) else {}
        return form | _of("array", _text(values.tobytes())) | scalar

    def _named(self, value):
        name = name_of(value)
        if name is not None and (type(value) is not FunctionType or is_named(value)):
            return _of("named", name)
        if type(value) is not FunctionType:
            return _lost(_lost_class(value))
        found = lost_function(value)
        return _lost(found)


def _of(kind: str, content: Any, cls: type | None = None) -> dict[str, Any]:
    named = {} if cls is None else {"class": _named_class(cls)}
    return {KIND: kind, **named, "of": content}


def _named_class(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _lost(lost: Lost) -> dict[str, Any]:
    held = {} if lost.holds is None else {"holds": repr(lost.holds)}
    return {KIND: "lost", "of": lost.what, **held}


def _lost_class(cls: Any) -> Lost:
    name = f"{cls.__module__}.{getattr(cls, '__qualname__', cls)}"
    return Lost(f"{name}, which its module does not name")


def _is_found(cls: type) -> bool:
    return name_of(cls) == _named_class(cls)


def _parts(value):
    if type(value) is complex:
        return value.real, value.imag
    is_span = type(value) in (range, slice)
    return (value.start, value.stop, value.step) if is_span else value


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _checksum(values: numpy.ndarray) -> str:
    """Return a checksum: of an array above 16 MiB, of some of it."""
    stride = max(1, values.nbytes >> 24)
    return f"{zlib.crc32(values.reshape(-1)[::stride].tobytes()):08x}"


# ---- reading -------------------------------------------------------------------------------------


class DataReader:
    """Turns data into values again, and runs nothing but the classes of modules that it names.

    names   finds what is named
    parts   {path: module, parameter or buffer} of the model whose attributes are read
    """

    def __init__(self, names: "CodeNames", parts: dict[str, Any] | None = None) -> None:
        self._names, self._parts = names, {} if parts is None else parts
        self._made: list[Any] = []

    def value(self, data: Any) -> Any:
        """Return the value.

        Errors: CheckpointError if it holds what is lost, what may not be looked up, or no data of
        this form.
        """
        if isinstance(data, list):
            return list(map(self.value, data))
        if not isinstance(data, dict):
            return data
        if KIND not in data:
            return {name: self.value(entry) for name, entry in data.items()}
        kind = data[KIND]
        try:
            if kind in _SEQUENCES:
                return _SEQUENCES[kind](list(map(self.value, data["of"])))
            return getattr(self, _READERS[kind])(data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{str(data):.200} cannot be read: {error}") from error

    def arguments(self, stored: dict[str, Any], maker: Any) -> tuple[list, dict[str, Any]]:
        """Return the positional and the named arguments with which to call the class."""
        values = {name: self.value(entry) for name, entry in stored.items()}
        more = [values.pop(name) for name in list(values) if name.startswith("**")]
        rest = [values.pop(name) for name in list(values) if name.startswith("*")]
        named = {**values, **{key: entry for each in more for key, entry in each.items()}}
        positional: list[Any] = []
        signature = inspect.signature(maker.__init__, follow_wrapped=False)  # as it was recorded
        for name, parameter in signature.parameters.items():
            is_before = bool(rest and rest[0]) and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if (is_before or parameter.kind is parameter.POSITIONAL_ONLY) and name in named:
                positional.append(named.pop(name))
        return [*positional, *(entry for each in rest for entry in each)], named

    def _read_float(self, data):
        return float(data["of"])

    def _read_bytes(self, data):
        return base64.b64decode(data["of"], validate=True)

    def _read_path(self, data):
        return Path(data["of"])

    def _read_dtype(self, data):
        dtype = numpy.dtype(str(data["of"]))
        if dtype.kind not in _NUMBERS:
            raise CheckpointError(f"{dtype} is no dtype of numbers")
        return dtype

    def _read_array(self, data):
        dtype = self._read_dtype({"of": data["dtype"]})
        values = numpy.frombuffer(self._read_bytes(data), dtype).reshape(data["shape"]).copy()
        return values[()] if data.get("scalar") else values

    def _read_named(self, data):
        return self._names.thing(data["of"])

    def _read_enum(self, data):
        members = self._names.thing(data["class"], Enum).__members__
        return members[data["of"]]

    def _read_partial(self, data):
        function, args, keywords = map(self.value, data["of"])
        return partial(function, *args, **keywords)

    def _read_namedtuple(self, data):
        cls = self._names.thing(data["class"], tuple)
        return tuple.__new__(cls, map(self.value, data["of"]))

    def _read_object(self, data):
        cls = self._names.thing(data["class"], object)
        made = object.__new__(cls) if is_plain(cls) else self._names.namespace(cls)
        self._made.append(made)
        for name, entry in data["of"].items():
            if name.startswith("__"):
                raise CheckpointError(f"an object of {data['class']} has no attribute {name}")
            _put(made, name, self.value(entry))
        return made

    def _read_made(self, data):
        cls = self._names.recorded(data["class"])
        place = len(self._made)
        self._made.append(None)
        args, named = self.arguments(data["of"], cls)
        self._made[place] = cls(*args, **named)
        return self._made[place]

    def _read_tensor(self, data):
        place = len(self._made)
        self._made.append(None)
        if data["kind"] == "Tensor":
            self._made[place] = Tensor(self.value(data["of"]))
        else:
            shape, init, dtype = data["of"]
            self._made[place] = _TENSORS[data["kind"]](tuple(shape), self.value(init), dtype)
        return self._made[place]

    def _read_same(self, data):
        made = self._made[data["of"]]
        if made is None:
            raise CheckpointError("it holds a thing that is made of itself")
        return made

    def _read_part(self, data):
        return self._parts[data["of"]]

    def _read_lost(self, data):
        raise CheckpointError(f"{data['of']} could not be stored")


_READERS = {
    name.removeprefix("_read_"): name for name in vars(DataReader) if name.startswith("_read_")
}


def _put(made: Any, name: str, value: Any) -> None:
    """Set an attribute, and call nothing of its class."""
    if hasattr(made, "__dict__") and not hasattr(type(made), name):
        vars(made)[name] = value
    else:
        object.__setattr__(made, name, value)
