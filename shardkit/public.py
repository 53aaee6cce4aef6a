"""Names that a room offers: each stands once, in the table of the room's __init__.py.

    __getattr__, __dir__, __all__ = public_names(__name__, {"mesh": "Mesh"})    large rooms
    __all__ = import_names(__name__, {"box": "Box tiles_exactly"})              small rooms

A large room imports a name when it is first asked for (PEP 562), a small one all of them at once.
What type checkers read, the __init__.pyi beside it, is written from the table by
packaging/stubs.py; a test compares them. So an import of a large room, or of one file of it, opens
what is used and nothing else: of 4,096 ranks on one file system each reads the files that it runs.
What a name needs is imported whole and at once, so a model that is built imports nothing more
during its steps. The collector of cycles rests meanwhile: an import makes many objects and hardly
a cycle that is garbage, so each of its rounds walks all of them for nothing.

A late name must not be that of a file of the room: importing the file would put itself in its
place. Files and folders of a room are attributes of it too, without being named.

One thread at a time imports in this way. Python's own locks, one for each module, give a thread
a module that is half imported where they would wait in a circle, as those of a room and of its
files may. So that none waits for our lock inside of an import, files of shardkit name the files
that they import from, and no room.
"""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

_IMPORTING = threading.RLock()  # before the locks of modules


def public_names(
    room: str, table: dict[str, str], hint: Callable[[str], str] = lambda name: ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return __getattr__, __dir__ and __all__ of this room.

    table   as places_of() reads it
    hint    name -> what the message of an AttributeError says about it
    """
    places = places_of(table)

    def find(name: str) -> object:
        if name not in places:
            return find_file(name)
        with importing():
            value = _imported(room, *places[name])
        setattr(sys.modules[room], name, value)  # from now on it is found without us
        return value

    def find_file(name: str) -> object:
        if not name.startswith("_"):
            try:
                return import_module(f".{name}", room)
            except ModuleNotFoundError as error:
                if error.name != f"{room}.{name}":
                    raise
        raise AttributeError(f"module {room!r} has no attribute {name!r}{hint(name)}")

    def known() -> list[str]:
        return sorted({*vars(sys.modules[room]), *places})

    return find, known, sorted(places)


@contextmanager
def importing() -> Iterator[None]:
    """Inside, this thread alone imports, and the collector of cycles rests: what is made counts as
    old at once.
    """
    with _IMPORTING, resting():
        try:
            yield
        finally:
            _age()


def _age() -> None:
    """Put all objects into the oldest generation, without the two walks that bring them there.

    Not where a program has frozen some: they would be thawed.
    """
    has_many = gc.get_count()[0] > gc.get_threshold()[0]
    if has_many and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()


class _Rests:
    """How many threads want the collector of cycles to rest, and whether it works after them."""

    lock = threading.Lock()
    count = 0
    is_wanted_after = False


@contextmanager
def resting() -> Iterator[None]:
    """Inside, the collector of cycles rests: until the last of the threads that are here leaves."""
    with _Rests.lock:
        if _Rests.count == 0:
            _Rests.is_wanted_after = gc.isenabled()
            gc.disable()
        _Rests.count += 1
    try:
        yield
    finally:
        with _Rests.lock:
            _Rests.count -= 1
            if _Rests.count == 0 and _Rests.is_wanted_after:
                gc.enable()


def import_names(room: str, table: dict[str, str], opened: Any = None) -> list[str]:
    """Import all names of a table, as places_of() reads it, into a room; return its __all__.

    opened   (room, value) -> what stands in the room for the value; None: itself
    """
    places = places_of(table)
    for name, place in places.items():
        value = _imported(room, *place)
        setattr(sys.modules[room], name, value if opened is None else opened(room, value))
    return sorted(places)


def places_of(table: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return {name: (file, its name there)} of a table {file: names, separated by blanks}.

    NEW=OLD is the OLD of that file under another name. Names of "." are files or folders
    themselves.
    """
    places = {}
    for file, names in table.items():
        for name in names.split():
            name, _, there = name.partition("=")
            places[name] = file, there or name
    return places


def _imported(room: str, file: str, name: str) -> object:
    if file == ".":
        return import_module(f".{name}", room)
    return getattr(import_module(f".{file}", room), name)


def import_all(room: str) -> None:
    """Import all names of a room, before threads ask for some of them in ways of their own."""
    for name in sys.modules[room].__all__:
        getattr(sys.modules[room], name)


class GivenBy:
    """An attribute of a class that a file of a later room gives to it, imported when asked for.

    The file puts the attribute in the place of this one.
    """

    def __init__(self, file: str):
        self._file = file

    def __set_name__(self, owner: type, name: str):
        self._name = name

    def __get__(self, instance: object, cls: type):
        with importing():
            import_module(self._file)
        return getattr(cls if instance is None else instance, self._name)


class LateModule:
    """A library that is imported when the first of its names is used; a storm of ranks that do not
    use it does not read it.
    """

    def __init__(self, name: str):
        self._name = name
        self._module: ModuleType | None = None  # once it is whole

    @property
    def imported(self) -> ModuleType:
        """The library."""
        if self._module is None:
            self._module = import_module(self._name)
        return self._module

    def __getattr__(self, name: str):
        return getattr(self.imported, name)
