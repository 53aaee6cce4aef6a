"""Cutting a model into units.

blocks   embedding | blocks.0 | blocks.1 | norm | head      from the model's blocks()
units    embedding | blocks.0 | blocks.1 | norm   head      merged until a unit is worth a message
stages   embedding   blocks.0 | blocks.1   norm   head      runs of units (pipeline/balance.py)
"""

from dataclasses import dataclass

from ...array.accounts import bytes_text
from ...errors import ShardingError
from ...layout.cuts import merged_blocks
from ...nn.module import Module, ModuleList, Parameter, blocks_of, members_of
from ...nn.parameter import INSTEAD_OF_FREEZING


@dataclass(frozen=True)
class UnitPlan:
    """A run of neighboring blocks, the parameters that it owns, and the earlier units whose
    parameters it borrows.

    Tied weights are owned where they appear first; a later unit that uses them has the owner among
    its `lenders`.
    is_copy   a replica of another pipeline rank's unit, for a borrower on this rank: it is not
              counted, saved or run
    """

    blocks: tuple[Module, ...]
    parameters: dict[str, Parameter]
    lenders: tuple[int, ...]
    is_copy: bool = False

    @property
    def num_elements(self) -> int:
        """The number of parameters that this unit owns, in elements, on the tensor rank that has
        the most.
        """
        return sum(p.planned_size for p in self.parameters.values())


def plan_units(model: Module, minimum_elements: int) -> list[UnitPlan]:
    """Return the model's blocks as units of at least `minimum_elements` parameters each.

    The last unit may join its neighbor. The result depends on the model and this number alone, and
    not on the mesh: sums are formed per unit, and their bits must not change.
    Errors: ShardingError if the model has no parameters, or some outside its blocks, or of several
    dtypes.
    """
    names = {id(p): name for name, p in model.named_parameters().items()}
    if not names:
        raise ShardingError(
            f"{type(model).__name__} has no parameters, so there is nothing to train or shard"
        )
    owner: dict[int, int] = {}
    plans = []
    for index, blocks in enumerate(
        _group([block for _, block in blocks_of(model)], minimum_elements)
    ):
        used = {id(p): p for block in blocks for p in block.named_parameters().values()}
        new = {names[i]: p for i, p in used.items() if i not in owner}
        owner.update({i: index for i in used if i not in owner})
        plans.append(
            UnitPlan(
                tuple(blocks), new, tuple(sorted({owner[i] for i in used if owner[i] != index}))
            )
        )
    _check(model, names, owner)
    return plans


def describe_one_unit(model: Module, minimum_elements: int, itemsize: int) -> str | None:
    """Return what it costs that the model is one unit; None if units would save little.

    itemsize   bytes of a gathered element
    """
    if [block for _, block in blocks_of(model)] != [model]:
        return None
    modules = [member for member in members_of(model).values() if isinstance(member, Module)]
    parts = [part for module in modules for part in _possible_blocks(module)]
    sizes = [_num_elements(group) for group in _group(parts, minimum_elements)]
    whole, largest = model.parameter_count, max(sizes, default=model.parameter_count)
    if whole - largest < minimum_elements:
        return None
    return (
        f"{type(model).__name__} has no method blocks(), so it is one unit: all "
        f"{bytes_text(whole * itemsize)} of its parameters are gathered at once, and each rank "
        "holds as many gradients. If it is a chain of modules, let blocks() return them in the "
        "order of the forward pass, [(name, module), ...]: then "
        f"{bytes_text(largest * itemsize)} are gathered at a time"
    )


def _possible_blocks(module: Module) -> list[Module]:
    """Return the module's own blocks, the elements of a list of modules, or the module."""
    if isinstance(module, ModuleList):
        return list(module)
    return [block for _, block in blocks_of(module)]


def _num_elements(blocks: list[Module]) -> int:
    return sum(p.size for p in {id(p): p for block in blocks for p in block.parameters()}.values())


def _group(blocks: list[Module], minimum_elements: int) -> list[list[Module]]:
    """Return neighbors merged until each group owns enough elements.

    A tied parameter counts once, where it comes first.
    """
    seen, sizes = set(), []
    for block in blocks:
        new = {
            id(p): p.planned_size for p in block.named_parameters().values() if id(p) not in seen
        }
        seen.update(new)
        sizes.append(sum(new.values()))
    return [blocks[run.start : run.stop] for run in merged_blocks(sizes, minimum_elements)]


def check_trained(model: Module) -> None:
    """Raise ShardingError if a parameter is frozen."""
    frozen = [name for name, p in model.named_parameters().items() if not p.requires_grad]
    if frozen:
        named = f"{', '.join(frozen[:3])}{', ...' if len(frozen) > 3 else ''}"
        raise ShardingError(
            f"{type(model).__name__} has {len(frozen)} of its parameters frozen ({named}), but a "
            "sharded model trains all of them. Where one must keep its values, "
            f"{INSTEAD_OF_FREEZING}"
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
