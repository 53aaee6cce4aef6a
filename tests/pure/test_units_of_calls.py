"""Cutting a single block into the units of its modules, and what the tape says of their use."""

import numpy

from shardkit import nn
from shardkit.nn import ops
from shardkit.testing.array import Device, OwnBuffers
from shardkit.testing.nn import parameter_uses, walk
from shardkit.testing.parallel import plan_units


def units_of(model, minimum=1):
    """Return the names of each unit's parameters."""
    (plan,) = plan_units(model.finish(), minimum)
    assert plan.blocks == (model,) and not any(part.blocks for part in plan.parts)
    return [list(unit.parameters) for unit in (plan, *plan.parts)]


def linear(width):
    return nn.Linear(width, width, bias=False)


class Tree(nn.Module):
    """A parameter of its own, a small module, a nested one and a list with a small one."""

    def __init__(self):
        self.scale = nn.Parameter(4, nn.init.Fill(1.0))
        self.small = nn.Sequential(linear(2), linear(2))
        self.large = nn.Sequential(linear(8), linear(8))
        self.list = nn.ModuleList([linear(6), linear(5)])

    def forward(self, x):
        """Do nothing: no test calls it."""


def test_modules_are_units_and_what_is_no_larger_than_one_of_them_is_not_cut():
    assert units_of(Tree()) == [
        ["scale"],
        ["small.0.weight", "small.1.weight"],
        ["large.0.weight"],
        ["large.1.weight"],
        ["list.0.weight"],
        ["list.1.weight"],
    ]


def test_neighbors_are_merged_up_to_the_minimum_but_not_with_what_is_around_them():
    assert units_of(Tree(), 65) == [
        ["scale"],
        ["small.0.weight", "small.1.weight", "large.0.weight"],
        ["large.1.weight", "list.0.weight", "list.1.weight"],
    ]


def test_a_model_below_the_minimum_is_one_unit_without_parts():
    assert units_of(Tree(), 1000) == [list(Tree().finish().named_parameters())]


def test_a_module_most_of_whose_parameters_are_its_own_is_not_cut():
    tree = Tree()
    tree.scale = nn.Parameter(500, nn.init.Fill(1.0))
    assert units_of(tree) == [list(tree.named_parameters())]


def test_tied_parameters_are_where_they_come_first():
    tree = Tree()
    tree.list[1].weight = tree.large[0].weight
    assert units_of(tree)[-1] == ["list.0.weight"]
    assert units_of(tree)[2] == ["large.0.weight"]


def test_every_parameter_is_in_one_unit_in_the_order_of_names():
    for minimum in (1, 5, 9, 50, 65, 130, 1000):
        names = [name for unit in units_of(Tree(), minimum) for name in unit]
        assert names == list(Tree().finish().named_parameters())


# ---- the tape ------------------------------------------------------------------------------------


def test_uses_of_parameters_come_in_the_order_of_the_walk_which_stops_where_it_is_told():
    first, second = linear(2), linear(2)
    for number, layer in enumerate((first, second)):
        layer.weight.name, layer.weight.seed = f"{number}", 0
    x = nn.Tensor(numpy.ones((1, 2), "float32"))
    output = second(ops.tanh(first(x))) + second.weight.sum()
    uses = parameter_uses(output)
    used = [use.parameters for use in uses]
    assert used[0] == [second.weight]  # the sum is the newest
    assert second.weight in used[1] and first.weight in used[2] and len(used) == 3
    assert [use.order for use in uses] == sorted(use.order for use in uses)

    seen = []
    stops = [
        (uses[1].order - 0.5, lambda: seen.append(second.weight.grad is None)),
        (uses[1].order + 0.5, lambda: seen.append(first.weight.grad is None)),
        (uses[2].order + 0.5, lambda: seen.append(first.weight.grad is None)),
    ]
    walk((output._node,), (numpy.ones((1, 2), "float32"),), stops=stops)
    assert seen == [False, True, False]


def test_what_holds_no_parameter_has_no_uses():
    assert parameter_uses(nn.Tensor(numpy.ones(2))) == []


# ---- memory --------------------------------------------------------------------------------------


def test_own_buffers_last_as_long_as_views_of_them():
    device = Device("cpu")
    buffers = OwnBuffers(device, "float32", purpose="gathered parameters")
    one = buffers.take(100)
    one[:] = 1
    view = one[:10].reshape(2, 5)
    buffers.give(one)
    del one
    other = buffers.take(50)
    other[:] = 2
    assert (view == 1).all() and device.bytes_in_use("gathered parameters") == 600
    del view
    assert device.bytes_in_use("gathered parameters") == 200 and buffers.places() == []
