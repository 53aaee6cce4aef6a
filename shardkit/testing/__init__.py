"""Doors for the tests of this package: what they take of the inside, a module per room.

    import shardkit as sk                            first of all: what the package promises
    from shardkit.testing.comm import Ledger         a name of the inside
    from shardkit.testing.comm import ledger         a module, in which to patch what it looks up
    from shardkit.testing.parallel import units_of   a question to a sharded model

    test --name--> door: NAMES, MODULES --when it is asked for--> the file below shardkit/<room>/

A test knows no path below shardkit and no attribute between a sharded model and its parts. So a
file that moves, a part that is renamed, and a part that is cut in two are a line of one door, and
no test is touched. numpy.testing and torch.testing stand in their packages for the same reason.

NAMES      {file: names that live there}; "" is the room itself
MODULES    {name: file}, for patching: monkeypatch.setattr(ledger, "MACHINE_CODE", code), or with
           the text "shardkit.testing.comm.ledger.MACHINE_CODE". A door looks up anew whenever it is
           asked and keeps nothing, so patching the door would patch nothing: it refuses.
functions  questions, one for each that tests ask (units_of(model)), where no public name answers

A door imports a file when one of its names is asked for, not before, and nothing in the package
imports a door. tests/pure/test_structure.py counts what goes past the doors, and finds what a door
has that no test takes.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class Door(ModuleType):
    """A module that looks up NAMES and MODULES below ROOM whenever one of them is asked for."""

    ROOM: str
    NAMES: dict[str, str]
    MODULES: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name in self.MODULES:
            return self._file(self.MODULES[name])
        for file, names in self.NAMES.items():
            if name in names.split():
                return getattr(self._file(file), name)
        raise AttributeError(f"{self.__name__} has no {name}; a test that needs it enters it")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self) and name in dir(self):
            raise AttributeError(
                f"{self.__name__}.{name} is looked up anew by each who asks: to set it here does "
                "nothing; set it in the module that uses it, one of the door's MODULES"
            )
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return [*vars(self), *self.MODULES, *" ".join(self.NAMES.values()).split()]

    def _file(self, below: str) -> ModuleType:
        return import_module(f"{self.ROOM}.{below}" if below else self.ROOM)


def open_door(name: str) -> None:
    """Make the module of this name a door."""
    sys.modules[name].__class__ = Door
