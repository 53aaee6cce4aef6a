"""Which dropouts of a model under a tensor plan see a part of the features.

    column --> function --> Dropout --> row --> Dropout
                            own part            whole, the same on all ranks

Along a chain of modules (blocks, a Sequential, layers of shardkit) the plan tells it: features are
cut from a column layer to the next row layer. What a forward of somebody else does between its
layers cannot be known; there the plan names the dropout, or is refused.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import ShardingError
from ...nn.layers.attention import MultiheadAttention, TransformerEncoderLayer
from ...nn.layers.basic import Dropout, Embedding, Linear, Sequential
from ...nn.lora import LoRALinear
from ...nn.module import Module, blocks_of, members_of
from ...nn.transformer import FeedForward, GatedFeedForward, SelfAttention

_Class = TypeVar("_Class", bound=type[Module])
ON_A_PART = "column_dropout"
DROPOUTS: list[type[Module]] = [Dropout]  # classes whose masks can be sliced: masks_elements()
_IN_ORDER = (  # their forwards call their members in the order of assignment
    Sequential,
    SelfAttention,
    FeedForward,
    GatedFeedForward,
    MultiheadAttention,
    TransformerEncoderLayer,
)
_AFTER = {"column": True, "row": False}  # style: are the features cut?


def masks_elements(kind: _Class) -> _Class:
    """Return a class that multiplies x by a mask of its elements, as Dropout does: a decorator."""
    DROPOUTS.append(kind)
    return kind


def dropouts_on_parts(model: Module, styles: dict[str, str]) -> dict[str, str]:
    """Return {path: style} of the dropouts that see the features of one rank, and are not named.

    styles   {path: style} of what the plan names
    Errors: ShardingError if that cannot be told of a dropout.
    """
    modules = model.named_modules()
    named = {id(modules[path]): style for path, style in styles.items()}
    seen: dict[int, set[bool | None]] = {}
    _through(model, False, named, lambda drop, is_cut: seen.setdefault(id(drop), set()).add(is_cut))
    found = {}
    for path, module in modules.items():
        states = seen.get(id(module), set())
        if states == {True} and type(module) in DROPOUTS:
            found[path] = ON_A_PART
        elif states - {False}:
            raise ShardingError(
                f"tensor plan: whether dropout {path} sees whole features or those of one tensor "
                "rank cannot be told, since a forward of its own calls it; name it in the plan, "
                "as whole_dropout, column_dropout (its last dim is cut) or head_dropout ([batch, "
                "heads, ...])"
            )
    return found


def _through(
    module: Module, is_cut: bool | None, named: dict[int, str], see: Callable[[Module, Any], None]
) -> bool | None:
    """Tell `see` of each dropout inside whether its features are cut; return whether those are that
    leave the module. None: that is not known.
    """
    style = named.get(id(module))
    if isinstance(module, tuple(DROPOUTS)):
        if style is None and vars(module)["p"]:
            see(module, is_cut)
        return is_cut
    if style in _AFTER:
        return _AFTER[style]
    if style == "vocabulary":
        return type(module) is not Embedding
    if isinstance(module, (Linear, LoRALinear)):
        return False  # it reads whole features
    blocks = [block for _, block in blocks_of(module)]
    if len(blocks) > 1 or any(kind_of(module).forward is kind.forward for kind in _IN_ORDER):
        inside = blocks if len(blocks) > 1 else _modules_in(module)
        for each in inside:
            is_cut = _through(each, is_cut, named, see)
        return is_cut
    styles = {named.get(id(each)) for each in module.named_modules().values()}
    is_plain = styles.isdisjoint(_AFTER)
    for each in _modules_in(module):
        _through(each, is_cut if is_plain else None, named, see)
    if is_plain:
        return is_cut
    return False if "row" in styles else None


def kind_of(module: Module) -> type[Module]:
    """Return its class, or that of the layer whose place it takes on parts of samples."""
    return getattr(module, "takes_place_of", type(module))


def _modules_in(module: Module) -> list[Module]:
    return [member for member in members_of(module).values() if isinstance(member, Module)]
