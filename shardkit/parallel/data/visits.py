"""Units that are whole only while they are visited.

    enter 0   gather 0                 0
    leave 0   it stays for now         0
    enter 1   there is room for both   0 1
    leave 1
    enter 2   release 0, gather 2        1 2

So neighbors that belong to one unit gather it once, and little more is whole than the largest unit.
"""

from .turns import Turns
from .unit import Unit

_ROOM = 1.1  # of the largest unit: what is whole but not in use must fit into it


class Visits:
    """Keeps units whole while they are in use, and after it while there is room.

    units   in the order of their numbers; those that need no room are whole from the beginning
    turns   of the data axis, over which enter() and lend() are collective
    """

    def __init__(self, units: list[Unit], turns: Turns):
        self._units = {number: unit for number, unit in enumerate(units) if unit.lent.room}
        self._others = [unit for unit in units if not unit.lent.room]
        self._turns = turns
        self._room = _ROOM * max((unit.lent.room for unit in units), default=0)
        self._uses = dict.fromkeys(self._units, 0)
        self._whole: dict[int, None] = {}  # whose last use is the longest ago first

    def begin(self) -> None:
        """Gather what needs no room. Collective over the data axis."""
        for unit in self._others:
            unit.gather()

    def enter(self, numbers) -> None:
        """Make these units whole until leave()."""
        numbers = [number for number in numbers if number in self._units]
        missing = [number for number in numbers if number not in self._whole]
        self._make_room(missing, numbers)
        for number in missing:
            self._gather(number)
        for number in numbers:
            self._uses[number] += 1

    def leave(self, numbers) -> None:
        """End what enter() began; the units stay whole while there is room. No communication."""
        for number in numbers:
            if number in self._whole:
                self._uses[number] -= 1
                del self._whole[number]
                self._whole[number] = None

    def lend(self, number: int) -> None:
        """Make a unit whole in the midst of an operation: what that has read already lasts."""
        if number in self._units and number not in self._whole:
            self._make_room([number], [number])
            self._gather(number)

    def release(self) -> None:
        """Release all units. No communication."""
        for number in self._whole:
            self._units[number].release()
        for unit in self._others:
            unit.release()
        self._whole.clear()
        self._uses = dict.fromkeys(self._units, 0)

    def _gather(self, number):
        self._turns.take(number)
        self._units[number].gather()
        self._whole[number] = None

    def _make_room(self, missing, wanted) -> None:
        """Release what is not in use, the last used at last, until the missing units find room."""
        sizes = {number: self._units[number].lent.room for number in (*self._whole, *missing)}
        total = sum(sizes.values())
        for number in list(self._whole):
            if not missing or total <= self._room:
                return
            if not self._uses[number] and number not in wanted:
                self._units[number].release()
                del self._whole[number]
                total -= sizes[number]
