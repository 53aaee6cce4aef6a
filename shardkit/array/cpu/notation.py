"""What formulas are written with that only a compiler needs: Numba's names, without Numba.

    @inlined                            a formula that loops call
    @inlined_once                       one that is called with many constants
    @intrinsic, @overload, @jitable     as in numba.extending (jitable: register_jitable)
    external(name, "int32", ...)        a function of the C library: what it returns, what it takes
    ir, types, cgutils                  modules of llvmlite and Numba, to be used within functions

Numba and LLVM take a second and 200 MB, and a process that finds its code in files needs neither.
So these are notes, which Numba is told of when the first loop is to be compiled (`load`).
"""

import functools
import importlib

from ...public import LateModule


class Told:
    """What Numba is told of when it is loaded, and what works in compiled loops only.

    what   a function in Python; of a function of the C library its name
    """

    def __init__(self, what, tell):
        self._what = what
        self._tell = tell
        if callable(what):
            functools.update_wrapper(self, what)
        _NOTES.append(self)
        if _teach.cache_info().currsize:  # made while something is compiled
            _tell()

    @functools.cached_property
    def in_numba(self):
        """What Numba knows it as."""
        return self._tell(self._what)

    def tell(self) -> None:
        """Tell Numba, if it was not told."""
        assert self.in_numba is not None

    def __repr__(self):
        return f"<{getattr(self._what, '__qualname__', self._what)} in compiled loops>"


class Formula(Told):
    """A function that is compiled where a loop calls it.

    py_func   it, in Python
    """

    def __init__(self, py_func, tell=None):
        super().__init__(py_func, tell or in_machine_code)
        self.py_func = py_func


_NOTES: list[Told] = []
ir = LateModule("llvmlite.ir")
types = LateModule("numba.core.types")
cgutils = LateModule("numba.core.cgutils")
_extending = LateModule("numba.extending")
_numba = LateModule("numba")


def inlined(formula) -> Formula:
    """Return the formula for compiled loops; it is kept as a part of the loops that call it.

    Numba links formulas by qualified names: those that differ, made by one function, need names of
    their own.
    """
    return Formula(formula)


def always_inlined(formula) -> Formula:
    """Return a formula that is long, and taken into loops all the same.

    LLVM would leave it a function of its own, and make no vectors of a loop that calls it.
    """
    return Formula(formula, functools.partial(in_machine_code, forceinline=True))


def inlined_once(formula) -> Formula:
    """Return a formula that is compiled once for all integers, and not again for each constant.

    Numba takes most of the time of loops that call many such formulas; LLVM sees constants anyway.
    """
    return Formula(formula, _for_all_values)


def _for_all_values(formula):
    """Return Numba's function, which is chosen by the types of arguments alone."""
    made = in_machine_code(formula)
    choose = made.get_call_template
    made.get_call_template = lambda kinds, named: choose(map(types.unliteral, kinds), named)
    return made


def in_machine_code(formula, **options):
    """Return Numba's function: it releases the GIL, divides as IEEE, and Python does not call it.

    Nothing is reordered or contracted (no fastmath).
    """
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _numba.njit(formula, error_model="numpy", nogil=True, **options)


def in_this_process(formula):
    """Return Numba's function for Python to call."""
    load()
    return _numba.njit(formula, error_model="numpy", nogil=True)


def intrinsic(function) -> Told:
    """Return what loops call: function(typing context, types) returns a signature and a writer."""
    return Told(function, lambda known: _extending.intrinsic(known))


def overload(function, **options):
    """Return the decorator of what chooses a formula for a function by the types it is called with.

    Loops call the function itself.
    """

    def decorate(choose):
        Told(choose, lambda known: _extending.overload(function, **options)(known))
        return choose

    return decorate


def jitable(formula):
    """Return the formula, which loops may call, too."""
    Told(formula, lambda known: _extending.register_jitable(known))
    return formula


def external(name: str, returns: str, *takes: str) -> Told:
    """Return a function of the C library."""

    def tell(symbol):
        kinds = [getattr(types, kind) for kind in (returns, *takes)]
        return types.ExternalFunction(symbol, kinds[0](*kinds[1:]))

    return Told(name, tell)


def load() -> None:
    """Load Numba, and tell it of what was noted since the last time."""
    _teach()
    _tell()
    target = importlib.import_module("numba.core.registry").cpu_target
    target.typing_context.refresh()
    target.target_context.refresh()


def _tell():
    while _NOTES:
        _NOTES.pop(0).tell()


@functools.cache
def _teach():
    """Teach Numba what a note in a loop is: what it was told."""
    target = importlib.import_module("numba.core.registry").cpu_target
    known = {Told: lambda note: note.in_numba, LateModule: lambda module: module.imported}
    for kind, told in known.items():
        _extending.typeof_impl.register(kind)(
            lambda note, context, told=told: target.typing_context.resolve_value_type(told(note))
        )
