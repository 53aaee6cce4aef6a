"""What native/shardkit.c asks in a solver in C, C++ or Fortran: a coupling by plain numbers."""

import sys
import sysconfig
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any

import numpy

from ..comm.mpi.library import communicator_of
from ..errors import (
    CommunicationError,
    ConfigurationError,
    LaunchError,
    ShapeError,
    ShardingError,
)
from .coupled import Coupled
from .opening import coupled, opened
from .records import RecordForm

NATIVE = Path(__file__).with_name("native")
OK, OTHER = 0, 6  # of the codes of shardkit.h
_CODES: dict[type[Exception], int] = {  # of the others; the first that fits
    ShardingError: 1,
    LaunchError: 3,
    CommunicationError: 5,
    ValueError: 2,
    TypeError: 2,
}
Answer = tuple[int, str, float]
Place = tuple[int, str, int, bytes, bytes] | None  # an sk_array


def _answered(method: Callable[..., Any]) -> Callable[..., Answer]:
    """Return a method that never raises, and answers by a code, a sentence and a number."""

    def answer(self, *arguments) -> Answer:
        try:
            with self.lock:
                return OK, "", float(method(self, *arguments) or 0)
        except BaseException as error:  # sys.exit() too must not end the host
            codes = [code for kind, code in _CODES.items() if isinstance(error, kind)]
            return [*codes, OTHER][0], str(error) or type(error).__name__, 0.0

    return answer


class EmbeddedCoupling:
    """The coupling of a process that embeds Python, and the arrays that its puts read."""

    def __init__(self) -> None:
        self.lock = RLock()  # held in each call: a host may call from several threads
        self._coupled: Coupled | None = None
        self._fields: dict[str, numpy.ndarray] = {}

    def _open(self) -> Coupled:
        if self._coupled is None:
            raise ShardingError("no coupling is open; call sk_start() before")
        return self._coupled

    @_answered
    def start(self, handle: int, trainers: int, text: str | None):
        """Open the coupling.

        handle   of the communicator in Fortran, which any MPI has
        """
        if self._coupled is not None:
            raise ShardingError("a coupling is open; call sk_close() before the next one")
        try:
            comm = communicator_of(handle)
        except CommunicationError as error:  # no rank is lost: there is no MPI
            raise LaunchError(str(error)) from error
        options, problem = _options(text or "")
        options["trainers"] = trainers
        self._coupled = opened(comm, options, problem or _would_train(comm, trainers))

    @_answered
    def solvers(self):
        return self._open().solvers.py2f()

    @_answered
    def field(self, name: str | None, place: Place):
        """Let each put read this array."""
        self._open()
        if not name:
            raise ValueError("a field without a name")
        array = array_at(place)
        RecordForm.of({name: array})  # or it raises what a put would
        self._fields[name] = array

    @_answered
    def put(self, time: float, weight: float):
        """Put the fields as they are now.

        time   NaN: the number of the put
        """
        coupling = self._open()
        if not self._fields:
            raise ShardingError("there are no fields; call sk_field() before")
        stamp = None if numpy.isnan(time) else time
        coupling.put(time=stamp, weight=weight, **self._fields)

    @_answered
    def predict(self, x: Place, y: Place):
        """Write the model's output for x into y."""
        coupling, place = self._open(), array_at(y)
        output = numpy.asarray(coupling.predict(array_at(x)))
        if (output.shape, output.dtype) != (place.shape, place.dtype):
            raise ShapeError(
                f"the model's output is {output.dtype} {list(output.shape)}, and y "
                f"{place.dtype} {list(place.shape)}; wanted the same of both"
            )
        numpy.copyto(place, output)

    @_answered
    def steered(self, name: str | None, place: Place):
        """Write the numbers of this name, and return how many there are."""
        numbers = numpy.atleast_1d(numpy.asarray(self._open().steered.get(name or "", [])))
        into = array_at(place)
        if numbers.ndim > 1 or numbers.dtype.kind not in "biuf" or numbers.size > into.size:
            raise ValueError(f"{name} is {numbers.tolist()}; wanted at most {into.size} numbers")
        into[: numbers.size] = numbers
        return numbers.size

    @_answered
    def is_training(self):
        return self._open().is_training

    @_answered
    def finish(self):
        self._open().finish()

    @_answered
    def close(self):
        """Close the coupling, and write what Python holds of its output: nobody ends Python."""
        coupling = self._open()
        self._coupled, self._fields = None, {}
        with coupling:  # the others are told if this rank cannot finish
            coupling.finish()
        sys.stdout.flush()
        sys.stderr.flush()


def _options(text: str) -> tuple[dict[str, Any], str | None]:
    """Return the options in "name=value name=value", and what is wrong with them."""
    usual = signature(coupled).parameters.items()
    options = {name: each.default for name, each in usual if name != "comm"}
    known = sorted(options.keys() - {"trainers", "factory"})
    for pair in text.split():
        name, _, value = pair.partition("=")
        if name not in known:
            return options, f"option {pair!r}; wanted name=value with a name of {', '.join(known)}"
        options[name] = int(value) if value.isdecimal() else value
    return options, None


def _would_train(comm: Any, trainers: int) -> str | None:
    """Return what is wrong if this rank, which is not in Python, is one of the trainers."""
    first = comm.size - trainers
    if not 1 <= first <= comm.rank < comm.size:
        return None
    start = f"mpiexec -n {first} ./solver : -n {trainers} python train.py"
    return f"a program that calls shardkit.h is among the {trainers} that train; wanted {start}"


def array_at(place: Place) -> numpy.ndarray:
    """Return the host's array, where it lies. Errors: ShapeError."""
    if place is None or not place[0]:
        raise ShapeError("an array at address 0; wanted one of the caller's")
    address, name, num_dims, *dims = place
    try:
        dtype = numpy.dtype(name or "")
    except TypeError:
        raise ShapeError(f"dtype {name!r}; wanted one of NumPy's, as float32") from None
    numbers = [numpy.frombuffer(each, "i8").tolist() for each in dims]
    shape, strides = (each[: max(num_dims, 0)] for each in numbers)
    is_form = len(shape) == num_dims and min(shape, default=0) >= 0
    if dtype.kind not in "biufc" or not is_form:
        raise ShapeError(f"{name} of {num_dims} dims, {shape}; wanted numbers, and 0 to 8 dims")
    interface = {"version": 3, "typestr": dtype.str, "data": (address, False)}
    interface |= {"shape": tuple(shape), "strides": tuple(strides) if any(strides) else None}
    return numpy.asarray(SimpleNamespace(__array_interface__=interface))


def compiler_flags(*, fortran: bool = False) -> dict[str, list[str]]:
    """Return what a compiler is told: {"cflags", "sources", "ldflags": arguments}, in this order.

    fortran   with the module shardkit, whose file is compiled before those that use it
    Errors: ConfigurationError if a program cannot embed this Python.
    """
    version, folder = map(sysconfig.get_config_var, ("LDVERSION", "LIBDIR"))
    include = sysconfig.get_paths()["include"]
    for wanted in (Path(include, "Python.h"), Path(folder, f"libpython{version}.so")):
        if not wanted.exists():
            raise ConfigurationError(
                f"a program cannot embed {sys.executable}: there is no {wanted}; wanted a Python "
                "with its headers and shared library (python3-dev, or configured --enable-shared)"
            )
    python = ",".join(map(str, sys.executable.encode()))  # as numbers: no quotes for shell or make
    names = ["shardkit.c"] + ["shardkit_fortran.c", "shardkit.f90"] * fortran
    flags = {
        "cflags": [f"-I{NATIVE}", f"-I{include}", f"-DSHARDKIT_PYTHON={python}"],
        "sources": [str(NATIVE / name) for name in names],
        "ldflags": [f"-L{folder}", f"-Wl,-rpath,{folder}", f"-lpython{version}", "-lm"],
    }
    if any(" " in str(path) for path in (NATIVE, include, folder)):
        raise ConfigurationError(f"a path with a space among {flags}; wanted none, for the shell")
    return flags
