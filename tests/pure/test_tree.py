"""Trees of arrays: leaves in their order, structures that are equal by value, and refusals."""

import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field

import numpy
import pytest

import shardkit as sk
from shardkit.testing.base import (
    LEAF,
    is_tree,
    leaves,
    map_tree,
    named_leaves,
    num_samples,
    rebuild,
    rows,
    structure,
)

Pair = namedtuple("Pair", "first second")


@dataclass(frozen=True)
class Fields:
    pressure: object
    velocity: object = None


@dataclass
class Checked:
    """One whose __init__ wants an array."""

    values: numpy.ndarray
    twice: object = field(init=False, default=None)

    def __post_init__(self):
        self.twice = self.values * 2


TREES = {  # tree of numbers as leaves, its text
    "leaf": (1.5, "*"),
    "tuple": ((1, 2), "(*, *)"),
    "tuple of one": ((1,), "(*,)"),
    "list": ([1, [2, 3]], "[*, [*, *]]"),
    "dict": ({"b": 1, "a": (2, None)}, "{b: *, a: (*, None)}"),
    "named tuple": (Pair(1, {"x": 2}), f"{__name__}.Pair(first=*, second={{x: *}})"),
    "dataclass": (Fields(1, [2, 3]), f"{__name__}.Fields(pressure=*, velocity=[*, *])"),
    "none": (None, "None"),
    "empty": ({"a": (), "b": []}, "{a: (), b: []}"),
}


@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_its_structure_and_its_leaves(name):
    tree, text = TREES[name]
    form = structure(tree)
    assert str(form) == text and form.num_leaves == len(leaves(tree))
    assert rebuild(form, leaves(tree)) == tree
    assert type(rebuild(form, leaves(tree))) is type(tree)
    assert pickle.loads(pickle.dumps(form)) == form and hash(form) == hash(structure(tree))


def test_leaves_come_in_the_order_they_are_written():
    tree = {"b": 1, "a": Pair((2, 3), Fields(4, None))}
    assert leaves(tree) == [1, 2, 3, 4]
    assert [name for name, _ in named_leaves(tree, "x")] == [
        "x.b",
        "x.a.first[0]",
        "x.a.first[1]",
        "x.a.second.pressure",
    ]
    assert structure({"a": 1, "b": 2}) != structure({"b": 2, "a": 1})


def test_leaves_of_equal_trees_are_mapped_together():
    assert map_tree(lambda a, b: a + b, {"x": 1, "y": (2,)}, {"x": 10, "y": (20,)}) == {
        "x": 11,
        "y": (22,),
    }
    assert map_tree(lambda a: -a, 3) == -3
    with pytest.raises(sk.ShapeError, match=r"\[\*, \*\] beside one \(\*, \*\)"):
        map_tree(lambda a, b: a + b, (1, 2), [1, 2])


def test_subclasses_of_dict_become_dicts_and_a_dataclass_is_made_without_its_init():
    assert type(map_tree(abs, OrderedDict(a=-1))) is dict
    checked = Checked(numpy.ones(2))
    made = map_tree(lambda leaf: "a leaf", checked)
    assert (made.values, made.twice) == ("a leaf", "a leaf")


def test_samples_are_taken_from_every_leaf():
    tree = {"x": numpy.arange(6), "y": (numpy.arange(12).reshape(6, 2),)}
    assert num_samples(tree) == num_samples(tree["x"]) == 6
    part = rows(tree, slice(2, 4))
    assert part["x"].tolist() == [2, 3] and part["y"][0].tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    "value, is_one",
    [
        (numpy.ones(3), False),
        (2.0, False),
        ([1, 2], False),
        ([[1.0, 2.0], (3.0, 4.0)], False),
        ([], False),
        (["a"], False),
        ([numpy.ones(2)], True),
        ((numpy.ones(2), None), True),
        ({}, True),
        (None, True),
        (Pair(1, 2), True),
    ],
)
def test_lists_of_numbers_are_one_array(value, is_one):
    assert is_tree(value) is is_one


@pytest.mark.parametrize("act", [is_tree, leaves, structure, lambda t: map_tree(abs, t)])
@pytest.mark.parametrize("tree", [{1, 2}, frozenset(), {1: 2}, {"a": {3}}], ids=str)
def test_what_has_no_order_is_refused(tree, act):
    if act is is_tree and tree == {"a": {3}}:
        return  # it looks no deeper
    with pytest.raises(sk.ShapeError, match="no order|wanted strings"):
        act(tree)


def test_another_number_of_leaves_is_refused():
    with pytest.raises(ValueError, match="3 leaves for"):
        rebuild(structure((1, 2)), [1, 2, 3])
    assert rebuild(LEAF, [5]) == 5
