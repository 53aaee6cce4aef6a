"""MeshShape: rank and coordinates are each other's inverse, groups partition the ranks, wrong sizes
are refused.
"""

from dataclasses import fields
from itertools import permutations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit import MeshError
from shardkit.testing.layout import (
    AXES,
    ORDER,
    Coordinates,
    Held,
    MeshShape,
    alike,
    apart,
    parallel_sizes,
)

sizes = st.integers(1, 4)
meshes = st.builds(MeshShape, sizes, sizes, sizes, st.sampled_from(list(permutations(ORDER))))


@given(meshes)
def test_rank_and_coordinates_are_each_others_inverse(mesh):
    assert [mesh.rank(mesh.coordinates(rank)) for rank in range(mesh.size)] == list(
        range(mesh.size)
    )
    assert len({mesh.coordinates(rank) for rank in range(mesh.size)}) == mesh.size


@given(meshes, st.sampled_from(ORDER))
def test_groups_along_an_axis_hold_every_rank_once(mesh, axis):
    groups = mesh.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    assert groups == sorted(groups)
    for group in groups:
        assert all(mesh.group(axis, rank) == group for rank in group)
        assert [getattr(mesh.coordinates(rank), axis) for rank in group] == list(
            range(getattr(mesh, axis))
        )


@given(meshes)
def test_the_last_axis_of_the_order_varies_fastest(mesh):
    fastest = mesh.order[-1]
    assert mesh.group(fastest, 0) == list(range(getattr(mesh, fastest)))


def test_the_default_order_puts_tensor_peers_side_by_side():
    mesh = MeshShape(2, 2, 2)
    assert (
        mesh.group("tensor", 0) == [0, 1]
        and mesh.group("data", 0) == [0, 2]
        and mesh.group("pipeline", 0) == [0, 4]
    )
    assert mesh.coordinates(6) == Coordinates(pipeline=1, data=1, tensor=0)
    assert str(mesh) == "pipeline 2 x data 2 x tensor 2"


def test_another_order_puts_data_replicas_side_by_side():
    assert MeshShape(1, 2, 2, ("pipeline", "tensor", "data")).group("data", 0) == [0, 1]


def test_an_axis_is_a_field_of_both_and_an_entry_of_the_table():
    assert tuple(AXES) == ORDER == tuple(each.name for each in fields(Coordinates))
    assert tuple(each.name for each in fields(MeshShape)) == (*ORDER, "order")
    assert parallel_sizes(dict.fromkeys(AXES, 1)) == {
        f"{axis}_parallel_size": 1 for axis in ("pipeline", "data", "domain", "tensor")
    }


@pytest.mark.parametrize("held", Held)
def test_ranks_along_an_axis_have_a_thing_apart_or_alike(held):
    assert sorted(apart(held) + alike(held)) == sorted(AXES) and apart(held)


def test_every_axis_cuts_something():
    assert all(entry.apart and entry.cuts for entry in AXES.values())


@given(meshes)
def test_parts_of_a_batch_go_to_replicas_of_one_size(mesh):
    parts = [mesh.part_of(rank) for rank in range(mesh.size)]
    assert sorted(set(parts)) == list(range(mesh.num_parts))
    assert {parts.count(part) for part in parts} == {mesh.replica}
    assert parts == [mesh.coordinates(rank).data for rank in range(mesh.size)]


@given(meshes, st.sets(st.sampled_from(ORDER)))
def test_one_rank_of_those_that_are_alike_is_the_first(mesh, axes):
    first = [mesh.coordinates(rank).is_first(axes) for rank in range(mesh.size)]
    assert sum(first) == mesh.size // prod(mesh.sizes[axis] for axis in axes)
    for axis in axes:
        assert all(sum(first[rank] for rank in group) <= 1 for group in mesh.groups(axis))


@given(sizes, sizes, sizes)
def test_data_is_what_is_left_over(pipeline, data, tensor):
    mesh = MeshShape.infer(pipeline * data * tensor, pipeline=pipeline, tensor=tensor)
    assert mesh == MeshShape(pipeline, data, tensor)


@pytest.mark.parametrize(
    "world_size, settings, message",
    [
        (
            8,
            dict(pipeline=2, data=3, tensor=2),
            "pipeline 2 x data 3 x tensor 2 = 12 ranks, but 8 were started; set data = 2 or run "
            "mpiexec -n 12",
        ),
        (6, dict(pipeline=2, data=2, tensor=2), "= 8 ranks, but 6 were started; run mpiexec -n 8"),
        (
            6,
            dict(pipeline=2, tensor=2),
            "pipeline 2 x tensor 2 = 4 ranks per data replica do not divide the 6 .* -n 8",
        ),
        (2, dict(tensor=4), "do not divide the 2 that were started; run mpiexec -n 4"),
        (4, dict(tensor=0), "tensor 0 is not a size"),
        (4, dict(data=0), "data 0 is not a size"),
        (4, dict(pipeline=-2), "pipeline -2 is not a size"),
        (
            4,
            dict(order=("pipeline", "data", "data")),
            "order .* must name each of pipeline, data, domain, tensor once",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_the_arithmetic(world_size, settings, message):
    with pytest.raises(MeshError, match=message) as caught:
        MeshShape.infer(world_size, **settings)
    assert isinstance(caught.value, ValueError)


def test_unknown_axes_ranks_and_coordinates_are_refused():
    mesh = MeshShape(1, 2, 2)
    with pytest.raises(MeshError, match="'expert' is not an axis"):
        mesh.group("expert", 0)
    with pytest.raises(MeshError, match="'expert' is not an axis"):
        mesh.groups("expert")
    with pytest.raises(MeshError, match="'expert' is not an axis"):
        MeshShape.infer(4, expert=2)
    with pytest.raises(MeshError, match="rank 4 is not on a mesh of 4 ranks"):
        mesh.coordinates(4)
    with pytest.raises(MeshError, match="tensor coordinate 2 is outside the mesh"):
        mesh.rank(Coordinates(tensor=2))
