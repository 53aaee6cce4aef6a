"""Cutting a model into units.

blocks   embedding | blocks.0 | blocks.1 | norm | head      from the model's blocks()
units    embedding | blocks.0 | blocks.1 | norm   head      merged until a unit is worth a message
stages   embedding   blocks.0 | blocks.1   norm   head      runs of units (pipeline/balance.py)

What is frozen of a unit (requires_grad = False) is a unit of its own: its values are gathered with
the others, and it has no gradient, no optimizer state, no reduction and no step. So is what keeps
other optimizer state than the rest, because a group has another rule, or another objective, and
what is cut unevenly over the tensor axis, whose ranks need the same shards of what all hold.

A model without blocks() is one block. Its units are what its modules own, in the order of their
names, and they are gathered when these modules are called (step/calls.py):

    UNet(scale)                 units   scale                    its own, while UNet runs
      down.0  down.1  middle            down.0 | down.1 | middle
      up.1 (norm, conv)                 up.1.norm up.1.conv      merged as blocks are
"""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ...array.accounts import bytes_text
from ...errors import ShardingError, StagesError
from ...layout.cuts import merged_blocks, minimum_for_stages
from ...nn.module import Module, Parameter, blocks_of, members_of
from ...optim.groups import rule_for
from ...optim.muon import matrix_rule_of
from ..tensor.claims import is_uneven


@dataclass(frozen=True)
class UnitPlan:
    """A run of neighboring blocks, the parameters that it owns, and the earlier units whose
    parameters it borrows.

    Tied weights are owned where they appear first; a later unit that uses them has the owner among
    its `lenders`.
    is_copy   a replica of another pipeline rank's unit, for a borrower on this rank: it is not
              counted, saved or run
    parts     further units, without blocks of their own: those of a single block, which is gathered
              part by part as its modules are called, and what is frozen, or keeps other state, of a
              unit that is trained
    """

    blocks: tuple[Module, ...]
    parameters: dict[str, Parameter]
    lenders: tuple[int, ...] = ()
    is_copy: bool = False
    parts: "tuple[UnitPlan, ...]" = ()

    @property
    def num_elements(self) -> int:
        """The number of parameters that this unit owns, in elements, on the tensor rank that has
        the most.
        """
        own = sum(p.planned_size for p in self.parameters.values())
        return own + sum(part.num_elements for part in self.parts)

    @property
    def dtype(self) -> str:
        """The dtype of its parameters, in which they are trained."""
        return str(next(iter(self.parameters.values())).dtype)

    @property
    def is_frozen(self) -> bool:
        """True if its parameters take no gradient; else all of them do."""
        return not any(p.requires_grad for p in self.parameters.values())

    def copied(self) -> "UnitPlan":
        """Return the plan of a copy for a borrower on another pipeline rank."""
        parts = tuple(replace(part, is_copy=True) for part in self.parts)
        return UnitPlan((), self.parameters, is_copy=True, parts=parts)

    def with_kinds_apart(self) -> "UnitPlan":
        """Return this plan, with what is frozen or cut unevenly in parts of its own."""
        return self.cut(_kinds_apart)

    def cut(self, pieces_of) -> "UnitPlan":
        """Return this plan with the parameters of the unit, and of each part, cut into pieces.

        pieces_of   parameters -> pieces of them; the first of the unit's stays, all others become
                    parts
        """
        own, *apart = pieces_of(self.parameters)
        in_parts = [piece for part in self.parts for piece in pieces_of(part.parameters)]
        parts = tuple(UnitPlan((), parameters) for parameters in (*apart, *in_parts))
        return replace(self, parameters=own, parts=parts)


def _kinds_apart(parameters: dict[str, Parameter]) -> list[dict[str, Parameter]]:
    """Return what is trained and what is frozen, and of each what is cut evenly and unevenly."""
    kinds: dict[tuple, dict[str, Parameter]] = {}
    for name, parameter in parameters.items():
        kind = not parameter.requires_grad, is_uneven(parameter)
        kinds.setdefault(kind, {})[name] = parameter
    return [kinds[kind] for kind in sorted(kinds)] or [parameters]


def plan_units(model: Module, minimum_elements: int) -> list[UnitPlan]:
    """Return the model's blocks as units of at least `minimum_elements` parameters each.

    The last unit may join its neighbor. A single block is one unit with parts. The result depends
    on the model and this number alone, and not on the mesh: sums are formed per unit, and their
    bits must not change.
    Errors: ShardingError if the model has no parameters, or some outside its blocks, or of several
    dtypes.
    """
    names = {p: name for name, p in model.named_parameters().items()}
    if not names:
        raise ShardingError(
            f"{type(model).__name__} has no parameters, so there is nothing to train or shard"
        )
    blocks = [block for _, block in blocks_of(model)]
    owner: dict[Parameter, int] = {}
    plans = []
    runs = merged_blocks(_new_sizes(blocks), minimum_elements)
    for index, group in enumerate([blocks[run.start : run.stop] for run in runs]):
        used = dict.fromkeys(p for block in group for p in block.named_parameters().values())
        new = {names[p]: p for p in used if p not in owner}
        owner.update({p: index for p in used if p not in owner})
        lenders = sorted({owner[p] for p in used if owner[p] != index})
        plans.append(UnitPlan(tuple(group), new, tuple(lenders)))
    _check(model, names, owner)
    if len(blocks) == 1:
        first, *rest = _units_of_calls(blocks[0], names, minimum_elements)
        parts = tuple(UnitPlan((), parameters) for parameters in rest)
        plans = [UnitPlan((blocks[0],), first, parts=parts)]
    return [plan.with_kinds_apart() for plan in plans]


def plan_units_for_stages(
    model: Module, minimum_elements: int, num_stages: int, *, is_clipped: bool
) -> list[UnitPlan]:
    """Return the units of plan_units(), or smaller ones if these are too few for the stages.

    The bits of a step do not depend on the size of units, but for norms that clip and for tied
    weights. There a mesh must not choose the size, and the caller is told what to set.
    Errors: those of plan_units; StagesError.
    """
    plans = plan_units(model, minimum_elements)
    if len(plans) >= num_stages:
        return plans
    sizes = _new_sizes([block for _, block in blocks_of(model)])
    minimum = minimum_for_stages(sizes, minimum_elements, num_stages)
    smaller = plan_units(model, minimum)
    if len(smaller) < num_stages:
        return plans  # whose error says the size that was asked for
    what = "the norm that clips" if is_clipped else "the sums of tied weights"
    if is_clipped or any(plan.lenders for plan in smaller):
        raise StagesError(
            f"a pipeline of {num_stages} stages needs at least {num_stages} units, but with "
            f"minimum_parameter_group_size = {minimum_elements} the model has {len(plans)}; set it "
            f"to {minimum}, on every mesh that is to compute the same bits: {what} depends on it"
        )
    return smaller


def with_groups(units: list[UnitPlan], groups: dict, order, rule, owners) -> list[UnitPlan]:
    """Return the units, of which each has parameters of one group side by side, and those whose
    rules keep other state, or that another objective trains, in parts of their own.

    groups   {name: group}; order: all groups, which decides
    owners   {name: objective that trains it}; {} if there is one loss
    """
    if not groups and not owners:
        return units
    units = [_in_groups(plan, groups, order) for plan in units]
    return [_with_rules_apart(plan, rule, groups, owners) for plan in units]


def _in_groups(plan: UnitPlan, groups: dict, order) -> UnitPlan:
    """Return the plan with parameters of one group side by side, so that a rule runs once for each.

    groups   {name: group}; order: all groups, which decides
    """
    numbers = {group: number for number, group in enumerate(order, 1)}
    names = sorted(plan.parameters, key=lambda name: numbers.get(groups.get(name), 0))
    parts = tuple(_in_groups(part, groups, order) for part in plan.parts)
    return replace(plan, parameters={name: plan.parameters[name] for name in names}, parts=parts)


def _with_rules_apart(plan: UnitPlan, rule, groups: dict, owners: dict) -> UnitPlan:
    """Return the plan with parameters whose rules keep other state, or need whole matrices, or
    that another objective trains, in parts of their own.

    groups   {name: group}; owners: {name: objective}
    """

    def kind_of(name):
        own = rule_for(name, rule, groups)
        return owners.get(name), tuple(own.state_names), matrix_rule_of(own) is not None

    return plan.cut(lambda parameters: _by_kind(parameters, kind_of))


def _by_kind(parameters: dict[str, Parameter], kind_of) -> list[dict[str, Parameter]]:
    """Return the parameters of each kind, in the order of their first; what is frozen stays."""
    kinds: dict[Any, dict[str, Parameter]] = {}
    for name, parameter in parameters.items():
        kind = kind_of(name) if parameter.requires_grad else None
        kinds.setdefault(kind, {})[name] = parameter
    return list(kinds.values()) or [parameters]


def _new_sizes(blocks: list[Module]) -> list[int]:
    """Return the elements of each block's parameters; tied ones count where they come first."""
    seen: set[Parameter] = set()
    sizes = []
    for block in blocks:
        new = [p for p in block.named_parameters().values() if p not in seen]
        seen.update(new)
        sizes.append(sum(p.planned_size for p in new))
    return sizes


# ---- a single block ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Owned:
    """Parameters that are gathered together.

    is_around   they belong to a module that calls others, and so they stay while those are called
    """

    parameters: list[Parameter]
    is_around: bool = False

    @property
    def size(self) -> int:
        return sum(p.planned_size for p in self.parameters)


def _units_of_calls(
    block: Module, names: dict[Parameter, str], minimum_elements: int
) -> list[dict[str, Parameter]]:
    """Return {name: parameter} of each unit, in the order of names.

    Neighbors are merged, but for what stays gathered around the calls of others. A module that has
    no more parameters than one module has by itself is not cut: that would not lower the peak.
    """
    uncut = max([minimum_elements, *map(_own_size, block.named_modules().values())])
    units = []
    for is_around, found in groupby(_owned(block, set(), uncut), lambda owned: owned.is_around):
        run = list(found)
        minimum = 1 if is_around else minimum_elements
        for cut in merged_blocks([owned.size for owned in run], minimum):
            merged = [p for owned in run[cut.start : cut.stop] for p in owned.parameters]
            units.append({names[p]: p for p in merged})
    return units


def _own_parameters(module: Module) -> list[Parameter]:
    return [member for member in members_of(module).values() if isinstance(member, Parameter)]


def _own_size(module: Module) -> int:
    return sum(p.planned_size for p in _own_parameters(module))


def _owned(module: Module, seen: set[Parameter], uncut: int) -> list[_Owned]:
    """Return what the module and those inside of it own; tied parameters where they come first.

    A module of `uncut` elements or fewer is not cut, nor is one most of whose parameters are its
    own: gathered around the calls of the others, these would need about the same memory. A list
    always is: its modules may be called far from one another.
    """
    everything = [p for p in module.named_parameters().values() if p not in seen]
    own = [p for p in dict.fromkeys(_own_parameters(module)) if p not in seen]
    whole, around = _Owned(everything), _Owned(own, is_around=True)
    is_called = type(module).forward is not Module.forward
    is_small = whole.size <= uncut and is_called
    if is_small or 2 * around.size >= whole.size:
        seen.update(everything)
        return [whole] if everything else []
    seen.update(own)
    found = [around] if own else []
    for inner in members_of(module).values():
        if isinstance(inner, Module):
            found += _owned(inner, seen, uncut)
    return found


def describe_large_block(model: Module, minimum_elements: int, itemsize: int) -> str | None:
    """Return what it costs that one of several blocks is most of the model, though it could be
    gathered part by part; None if it is not so.

    itemsize   bytes of a gathered element
    """
    blocks = blocks_of(model)
    sizes = _new_sizes([block for _, block in blocks])
    largest = max(sizes)
    if len(blocks) == 1 or 2 * largest < sum(sizes):
        return None
    name, block = blocks[sizes.index(largest)]
    names = {p: path for path, p in block.named_parameters().items()}
    parts = _units_of_calls(block, names, minimum_elements)
    most = max(sum(p.size for p in part.values()) for part in parts)
    if 4 * most > largest:
        return None
    return (
        f"block {name} of {type(model).__name__}.blocks() is one unit of "
        f"{bytes_text(largest * itemsize)}, most of the model, which is gathered at once. Let "
        "blocks() return its parts, or leave blocks() out where there is no pipeline: modules are "
        f"gathered as they are called then, {bytes_text(most * itemsize)} at a time"
    )


def check_trained(model: Module) -> None:
    """Raise ShardingError if all parameters are frozen."""
    parameters = model.parameters()
    if parameters and not any(p.requires_grad for p in parameters):
        raise ShardingError(
            f"all {len(parameters)} parameters of {type(model).__name__} are frozen, so there is "
            "nothing to train; leave at least one with requires_grad = True"
        )


def _check(model, names, owner):
    outside = [name for i, name in names.items() if i not in owner]
    if outside:
        raise ShardingError(
            f"{type(model).__name__}.blocks() does not reach parameter {outside[0]}; every "
            "parameter must belong to a block, or leave blocks() out so that the whole model is one"
        )
    dtypes = {str(p.dtype) for p in model.parameters()}
    if len(dtypes) > 1:
        raise ShardingError(
            f"{type(model).__name__} has parameters of dtypes {', '.join(sorted(dtypes))}; wanted "
            "one dtype"
        )
