"""Plans: which layers of an ordinary model are cut over the tensor axis, said from outside as {name
pattern: style}.

    {"embedding.tokens":            "vocabulary",      rows of the table, logits that stay local
     "blocks.*.attention":          "region",          x enters once for all column layers inside
     "blocks.*.attention.query":    "column",          whole heads per rank
     "blocks.*.attention.output":   "row",
     "head.output":                 "vocabulary"}      and the model's CrossEntropy becomes the vocabulary-parallel one

Patterns are those of a shell (* matches dots too); the first that matches a module gives its style.
A model under a plan is the same model: its parameters keep their names, seeds and values, and those
that are cut become boxes of themselves. Each attention layer's projections are cut between heads.
Where there are fewer key heads than ranks, each rank holds the one that its query heads read, and
the ranks that hold the same one form a sub-group.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...arguments import nearest
from ...comm import CommunicationBackend
from ...errors import ConfigurationError, ShardingError
from ...layout.box import Box
from ...layout.placement import even_span
from ...nn.gpt import GPT
from ...nn.layers import Dropout, Embedding, Linear
from ...nn.loss import CrossEntropy
from ...nn.mlp import MLP, DenseLayer
from ...nn.module import Module, Parameter, members_of
from ...nn.parameter import SlicedParameter
from ...nn.transformer import SelfAttention
from .layers import (
    SHARDED,
    Claim,
    ColumnParallelLinear,
    Region,
    RowParallelLinear,
    SequenceSlicedDropout,
    SequenceSlicedEmbedding,
    TensorAxis,
    VocabularyParallelCrossEntropy,
    VocabularyParallelEmbedding,
    VocabularyParallelLinear,
)

STYLES = ("column", "row", "vocabulary", "region")


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a parameter: [start, stop) along dim, which `copies` neighboring ranks
    hold.
    """

    dim: int
    start: int
    stop: int
    copies: int = 1

    def box(self, shape) -> Box:
        """Of a parameter of this shape."""
        offset, size = [0] * len(shape), list(shape)
        offset[self.dim], size[self.dim] = self.start, self.stop - self.start
        return Box(tuple(offset), tuple(size))


def default_plan(model: Module) -> dict[str, str]:
    """The plan for one of our models: GPT as in Megatron-LM, MLP column, row, column, row, ...

    The last layer of an MLP with an odd number of layers is not cut: every rank computes it on the
    same values.
    Errors: ShardingError for a model of another class.
    """
    if isinstance(model, GPT):
        attention = dict.fromkeys(["query", "key", "value"], "column") | {"output": "row"}
        mlp = dict.fromkeys(
            ["gate", "up"] if model.settings.choices.is_gated else ["up"], "column"
        ) | {"down": "row"}
        return {
            "embedding.tokens": "vocabulary",
            "blocks.*.attention": "region",
            "blocks.*.mlp": "region",
            **{f"blocks.*.attention.{name}": style for name, style in attention.items()},
            **{f"blocks.*.mlp.{name}": style for name, style in mlp.items()},
            "head.output": "vocabulary",
        }
    if isinstance(model, MLP):
        num_layers = len(model.layers)
        return {
            f"layers.{index}": ("column", "row")[index % 2]
            for index in range(num_layers - num_layers % 2)
        }
    raise ShardingError(
        f"there is no default tensor plan for a {type(model).__name__}; pass one, {{name pattern: style}} "
        f"with styles {', '.join(STYLES)}"
    )


def apply_plan(
    model: Module, plan: dict[str, str], group: CommunicationBackend, *, sequence: bool = False
) -> None:
    """Replace the layers that the plan names by this rank's part of them, in place.

    Collective over `group`, the tensor axis, with the same model and plan on all its ranks. Nothing
    has changed if it raises.
    sequence   sequence parallelism; for a GPT under its default plan
    Errors: ShardingError for a pattern without a module, a style that a module cannot take, a
    parameter that a layer outside of the plan uses too, a second plan; ConfigurationError, with the
    arithmetic, where sizes do not divide.
    """
    styles = _assign(model, plan)
    modules = model.named_modules()
    cuts = _all_cuts(modules, styles, group.world_size, group.rank)
    _check_model(model, modules, styles, cuts, sequence)
    axis = TensorAxis(group, sequence)
    parts = _sliced(model, cuts, group)
    replaced = {
        id(modules[path]): _replacement(path, modules[path], styles, parts, axis) for path in styles
    }
    if sequence:
        replaced |= _sequence_sliced(model, modules, axis)
    for path, module in modules.items():
        if id(module) in replaced:
            replaced[id(module)].path_in_model = module.path_in_model
        _put(module, replaced)
    _claim_the_rest(model, axis)
    _set_loss(model, modules, styles, axis)


def check_plan(model: Module, plan: dict[str, str]) -> None:
    """Errors: ShardingError, as apply_plan raises, if the plan does not go with this model on any
    tensor axis.
    """
    styles = _assign(model, plan)
    modules = model.named_modules()
    _check_model(model, modules, styles, _all_cuts(modules, styles, 1, 0), sequence=False)


def close_groups(model: Module) -> None:
    """Close the sub-groups that apply_plan made. Collective over the tensor axis; the axis itself
    stays open.
    """
    claims = [
        p.claim for p in model.parameters() if p.claim is not None and p.claim.kind == "partial"
    ]
    for holders in {
        id(claim.holders): claim.holders for claim in claims if claim.is_subgroup
    }.values():
        holders.close()


# ---- what the plan says --------------------------------------------------------------------------


def _assign(model, plan) -> dict[str, str]:
    """{path: style} of the modules that are replaced. Errors: ShardingError for an unknown style or
    pattern.
    """
    paths = [path for path in model.named_modules() if path]
    for pattern, style in plan.items():
        if style not in STYLES:
            raise ShardingError(
                f"tensor plan: {pattern!r} has style {style!r}; wanted one of {', '.join(STYLES)}"
            )
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise ShardingError(
                f"tensor plan: {pattern!r} matches no module of this {type(model).__name__}; "
                f"{_names_there(pattern, paths)}"
            )
    found = {
        path: next((plan[pattern] for pattern in plan if fnmatchcase(path, pattern)), None)
        for path in paths
    }
    return {path: style for path, style in found.items() if style is not None}


def _names_there(pattern: str, paths: list[str]) -> str:
    """What a message says of a pattern that matches none of these."""
    near = nearest(pattern, paths)
    if near is not None:
        return f"did you mean {near}?"
    return (
        f"its modules are {', '.join(paths[:8])}{', ...' * (len(paths) > 8)}"
        if paths
        else "it has no modules inside"
    )


def _all_cuts(modules, styles, num_ranks, rank) -> dict[int, Cut]:
    """{id of parameter: its cut}. Errors: ShardingError if two layers cut one parameter
    differently.
    """
    cuts: dict[int, Cut] = {}
    for path, style in styles.items():
        if style == "region":
            continue
        module = modules[path]
        _check_style(path, module, style)
        cut = _cut(path, module, style, modules[path.rpartition(".")[0]], num_ranks, rank)
        bias = None if style == "row" or isinstance(module, Embedding) else module.bias
        for parameter in [module.weight] + ([bias] if bias is not None else []):
            if cuts.setdefault(id(parameter), cut) != cut:
                raise ShardingError(
                    f"tensor plan: {path} as {style} cuts {parameter.name} otherwise than another layer that "
                    "is tied to it; give both the same style"
                )
    return cuts


def _check_style(path, module, style):
    wanted = (Linear, DenseLayer, Embedding) if style == "vocabulary" else (Linear, DenseLayer)
    if type(module) not in wanted:
        raise ShardingError(
            f"tensor plan: {path} is a {type(module).__name__}, which cannot be {style}; wanted "
            f"{' or '.join(kind.__name__ for kind in wanted)}"
        )
    if not isinstance(module.weight, Parameter):
        raise ShardingError(
            f"tensor plan: the weight of {path} is a constant, which every rank holds whole; "
            "leave it out of the plan"
        )


def _cut(path, module, style, parent, num_ranks, rank) -> Cut:
    """This rank's part of the weight. Errors: ConfigurationError, with the arithmetic, if the ranks
    do not divide it.
    """
    dim = 1 if style == "row" else 0
    what, unit = _counted(module, style, parent)
    count = module.weight.shape[dim] // unit
    if count % num_ranks == 0:
        start, stop = even_span(count, num_ranks, rank)
        return Cut(dim, start * unit, stop * unit)
    if what == "key heads" and num_ranks % count == 0:
        copies = num_ranks // count
        return Cut(dim, rank // copies * unit, (rank // copies + 1) * unit, copies)
    raise ConfigurationError(
        f"tensor plan: {path} as {style} has {count} {what} = {num_ranks} tensor ranks x "
        f"{count // num_ranks} + {count % num_ranks}; wanted a multiple of {num_ranks}"
        f"{' or a divisor of it' if what == 'key heads' else ''}: change the model, the tensor size or "
        "the plan"
    )


def _counted(module, style, parent) -> tuple[str, int]:
    """What a weight is cut between, and how many of its rows (columns, for a row layer) make
    one.
    """
    if isinstance(parent, SelfAttention):
        return (
            "key heads" if module is parent.key or module is parent.value else "heads"
        ), parent.head_dim
    return {"column": "output features", "row": "input features", "vocabulary": "vocabulary rows"}[
        style
    ], 1


def _check_model(model, modules, styles, cuts, sequence):
    """Raise ShardingError if what is left of the model does not go with what is cut."""
    if any(parameter.claim is not None for parameter in model.parameters()):
        raise ShardingError(
            "a tensor plan was applied to this model before; build it anew to apply another"
        )
    if sequence and not (isinstance(model, GPT) and styles == _assign(model, default_plan(model))):
        raise ShardingError(
            "sequence parallelism is for a GPT under its default plan; apply default_plan(model), or without "
            "sequence=True"
        )
    layers = {path for path, style in styles.items() if style != "region"}
    for path, module in modules.items():
        own = [member for member in members_of(module).values() if isinstance(member, Parameter)]
        if path not in layers and any(id(parameter) in cuts for parameter in own):
            raise ShardingError(
                f"tensor plan: {path} is not in it, but is tied to a layer that is cut; name both"
            )
        if path not in layers and own and _is_inside_region(path, styles):
            raise ShardingError(
                f"tensor plan: {path} is inside a region, where the gradient of x is summed over ranks, but is "
                "not cut; name it too, or make its layers column and row without a region"
            )
    _check_loss(model, modules, styles)


def _check_loss(model, modules, styles):
    heads = _vocabulary_heads(modules, styles)
    if len(heads) > 1 or heads and type(model.loss) is not CrossEntropy:
        raise ShardingError(
            f"tensor plan: {', '.join(heads)} as vocabulary leaves the logits cut, which only one last layer "
            f"before a CrossEntropy may do, but the loss is {model.loss!r}; leave it out of the plan"
        )


def _vocabulary_heads(modules, styles) -> list[str]:
    return [
        path
        for path, style in styles.items()
        if style == "vocabulary" and isinstance(modules[path], Linear)
    ]


def _is_inside_region(path, styles) -> bool:
    """True if a module above, or the module itself, is a region."""
    return any(
        style == "region" and f"{path}.".startswith(f"{outer}.") for outer, style in styles.items()
    )


# ---- the new layers ------------------------------------------------------------------------------


def _sliced(model, cuts, group) -> dict[int, SlicedParameter]:
    """{id of parameter: this rank's box of it, with its claim}. Collective over the group."""
    parts = {
        id(p): SlicedParameter.of(p, cuts[id(p)].box(p.shape))
        for p in model.parameters()
        if id(p) in cuts
    }
    shared = sorted({cut.copies for cut in cuts.values() if cut.copies > 1})
    claims = {1: SHARDED} | {
        copies: Claim("partial", group.split(group.rank // copies, group.rank), is_subgroup=True)
        for copies in shared
    }
    for key, part in parts.items():
        part.claim = claims[cuts[key].copies]
    return parts


def _replacement(path, module, styles, parts, axis) -> Module:
    style = styles[path]
    if style == "region":
        return Region(axis, module)
    weight = parts[id(module.weight)]
    if isinstance(module, Embedding):
        return VocabularyParallelEmbedding(axis, weight)
    activation = module._activation if isinstance(module, DenseLayer) else None
    if style == "row":
        return RowParallelLinear(axis, weight, module.bias, activation=activation)
    kind = VocabularyParallelLinear if style == "vocabulary" else ColumnParallelLinear
    bias = None if module.bias is None else parts[id(module.bias)]
    return kind(
        axis, weight, bias, enters=not _is_inside_region(path, styles), activation=activation
    )


def _sequence_sliced(model, modules, axis) -> dict[int, Module]:
    """Positions and dropouts, which see a slice of the sequence; norms and biases need no
    change.
    """
    replaced = {
        id(module): SequenceSlicedDropout(axis, module.p)
        for module in modules.values()
        if type(module) is Dropout
    }
    positions = model.embedding.positions
    return (
        replaced
        if positions is None
        else replaced | {id(positions): SequenceSlicedEmbedding(axis, positions.weight)}
    )


def _put(owner, replaced):
    """Exchange what the owner holds, in attributes or in a list of modules."""
    for name, value in list(vars(owner).items()):
        if id(value) in replaced:
            setattr(owner, name, replaced[id(value)])
        elif isinstance(value, list):
            value[:] = [replaced.get(id(element), element) for element in value]


def _claim_the_rest(model, axis):
    """What is not cut: equal gradients on all ranks, or under sequence parallelism the terms of
    slices.
    """
    claim = Claim("partial" if axis.sequence else "replicated", axis.group)
    for parameter in model.parameters():
        parameter.claim = parameter.claim or claim


def _set_loss(model, modules, styles, axis):
    for path in _vocabulary_heads(modules, styles):
        num_classes = modules[path].weight.shape[0]
        model.loss = VocabularyParallelCrossEntropy(axis, num_classes, model.loss.ignore_index)
