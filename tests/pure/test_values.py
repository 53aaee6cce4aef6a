"""The dataclasses of values.py are those of Python, but for when their methods are compiled."""

import copy
import dataclasses
import inspect
import pickle
import sys
from typing import ClassVar

import pytest

from shardkit.testing.base import dataclass

BOTH = [dataclasses.dataclass, dataclass]
OPTIONS = [
    {},
    {"frozen": True},
    {"eq": False},
    {"frozen": True, "eq": False},
    {"frozen": True, "kw_only": True},
    {"frozen": True, "slots": True},
    {"slots": True},
    {"frozen": True, "slots": True, "order": True},
    {"order": True},
]


def plain_pair(make, options):
    """Return (a class with fields of every kind, one that inherits from it)."""

    @make(**options)
    class Pair:
        number: int
        names: list = dataclasses.field(default_factory=list, repr=False)
        text: str = "a"
        unsaid: float = dataclasses.field(default=0.5, compare=False)
        made: dict = dataclasses.field(default_factory=dict, init=False, compare=False)
        fixed: int = dataclasses.field(default=7, init=False)
        last: int = dataclasses.field(default=1, kw_only=True, hash=False)
        room: ClassVar[str] = "layout"

        def __post_init__(self):
            object.__setattr__(self, "made", {"number": self.number})

        @property
        def double(self):
            return 2 * self.number

    @make(**options)
    class Triple(Pair):
        text: str = "of triple"
        third: int = 3

    return Pair, Triple


def tried(action):
    """Return what an action gives, or the kind of its error with the words of a refusal."""
    try:
        return action()
    except dataclasses.FrozenInstanceError as error:
        return type(error), str(error)
    except (TypeError, AttributeError) as error:
        return type(error)


def is_refused(action):
    try:
        action()
    except (AttributeError, TypeError):  # of slots, before Python 3.13, the latter
        return True
    return False


def answers(make, options):
    """Return what is seen of the classes and of objects of them."""
    found = []
    for cls in plain_pair(make, options):
        one, same, other = (
            cls(number=1, text="b"),
            cls(number=1, text="b"),
            cls(number=2, names=["x"], last=4),
        )
        found += [repr(one), repr(other), one == same, one == other, one != 3, one.double]
        found += [tried(lambda: hash(one) == hash(same)), tried(lambda: one < other)]
        found += [tried(lambda: one >= other), tried(lambda: one < 3)]
        found += [tried(lambda: setattr(one, "number", 2)), tried(lambda: delattr(one, "text"))]
        found += [is_refused(lambda: setattr(one, "unknown", 2)), tried(lambda: repr(cls()))]
        found += [
            tried(lambda: repr(cls(1, [], "b", 0.5, 1))),
            tried(lambda: repr(cls(1, unknown=1))),
        ]
        found += [dataclasses.asdict(other), dataclasses.astuple(other), other.made, cls.room]
        found += [repr(dataclasses.replace(other, number=5)), repr(copy.copy(other))]
        found += [repr(copy.deepcopy(other)), copy.deepcopy(other) == other]
        found += [[(f.name, f.type, f.init) for f in dataclasses.fields(cls)]]
        found += [cls.__match_args__, cls.__name__, cls.__doc__ and "doc", cls.__hash__ is None]
        found += [list(inspect.signature(cls).parameters), cls.__init__.__qualname__]
        found += [
            {k: getattr(cls.__dataclass_params__, k) for k in ("frozen", "eq", "order", "init")}
        ]
        found += [cls.__init__.__annotations__, one.names is not same.names]
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "none")
def test_a_class_answers_as_one_of_pythons_own(options):
    theirs, ours = (answers(make, options) for make in BOTH)
    assert ours == theirs


@pytest.mark.parametrize("base, derived", [BOTH, BOTH[::-1], [dataclass, dataclass]])
@pytest.mark.parametrize("slots", [False, True])
def test_classes_of_both_kinds_inherit_from_each_other(base, derived, slots):
    @base(frozen=True, slots=slots)
    class Base:
        x: int = 1

    @derived(frozen=True, slots=slots)
    class Derived(Base):
        y: int = 2

    assert repr(Derived(3)).endswith("Derived(x=3, y=2)") and Derived(3) == Derived(3, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Derived().x = 4
    with pytest.raises(TypeError, match="non-frozen"):

        @derived
        class Open(Base):
            y: int = 2

    assert Base.__dataclass_params__.frozen and Derived.__dataclass_params__.frozen


def test_methods_of_the_class_itself_stay():
    @dataclass(frozen=True)
    class Own:
        x: int

        def __repr__(self):
            return "own"

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 5

    assert repr(Own(1)) == "own" and Own(1) == Own(2) and hash(Own(1)) == 5


def test_a_value_that_holds_itself_has_a_text():
    @dataclass
    class Ring:
        next: object = None

    ring = Ring()
    ring.next = ring
    assert repr(ring).endswith("Ring(next=...)")


@dataclass(frozen=True, slots=True)
class Slotted:
    """One that can be pickled."""

    x: int
    y: tuple = ()


def test_a_frozen_value_in_slots_is_pickled():
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Slotted(1, (2,)), protocol)) == Slotted(1, (2,))


def test_nothing_is_compiled_before_the_first_object():
    compiled = []
    is_over = False

    def hear(event, given):
        if event == "exec" and given[0].co_filename == "<string>" and not is_over:
            compiled.append(given)

    sys.addaudithook(hear)  # for ever: it cannot be taken away

    @dataclass(frozen=True)
    class Late:
        x: int = 1

    assert not compiled
    assert Late().x == 1 and len(compiled) == 1
    assert repr(Late()) and Late() == Late() and {Late()} and len(compiled) == 1
    is_over = True
