"""Plans: which layers of an ordinary model are cut over the tensor axis, as {name pattern: style}.

    {"embedding.tokens":            "vocabulary",      rows of the table
     "blocks.*.attention":          "region",          x enters once for all column layers inside
     "blocks.*.attention.query":    "column",          whole heads per rank
     "blocks.*.attention.output":   "row",
     "head.output":                 "vocabulary"}      logits that stay cut, for a CrossEntropy that
                                                       takes them so

Patterns are those of a shell (* matches dots too); the first that matches a module gives its style.
A model under a plan is the same model: its parameters keep their names, seeds and values, and those
that are cut become boxes of themselves. The projections of each attention layer are cut between
heads, and so are norms over all of them; a norm of single heads is whole on every rank. Where there
are fewer key heads than ranks, each rank holds the one that its query heads read, and the ranks
that hold the same one form a sub-group.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ...arguments import nearest
from ...comm.backend import CommunicationBackend
from ...errors import ConfigurationError, ShardingError
from ...layout.box import Box
from ...layout.cuts import even_span
from ...nn.layers.basic import Dropout
from ...nn.loss import CrossEntropy
from ...nn.models.gpt import GPT
from ...nn.module import Module, Parameter, exchange, members_of
from ...nn.parameter import SlicedParameter
from ...nn.transformer import SelfAttention
from .claims import SHARDED, UNEVEN, Claim
from .default_plans import default_plan
from .dropouts import dropouts_on_parts, kind_of
from .layers import SEQUENCE_DIM, TensorAxis
from .sequence import SequenceSlicedEmbedding, SlicedDropout
from .styles import STYLES, TensorStyle
from .vocabulary import VocabularyParallelCrossEntropy


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a parameter: [start, stop) along dim, on `replicas` neighboring ranks.

    longest    along dim, of the parts of all ranks
    is_even    they are equally long
    """

    dim: int
    start: int
    stop: int
    longest: int
    is_even: bool = True
    replicas: int = 1

    def box(self, shape) -> Box:
        """Return this part of a parameter of this shape."""
        return Box.whole(shape).narrowed(self.dim, self.start, self.stop)

    def slice_of(self, whole: Parameter) -> SlicedParameter:
        """Return this part of a parameter."""
        planned_size = whole.size // whole.shape[self.dim] * self.longest
        return SlicedParameter.of(whole, self.box(whole.shape), planned_size)


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
    replaced = {}
    for path, name in styles.items():
        enters = not _is_inside_region(path, styles)
        replaced[id(modules[path])] = STYLES[name].build(axis, modules[path], parts, enters)
    if sequence:
        replaced |= _sequence_sliced(model, modules, axis)
    for path, module in modules.items():
        if id(module) in replaced:
            replaced[id(module)].path_in_model = module.path_in_model
    exchange(modules[""], replaced)
    _claim_terms(modules, styles, axis)
    _claim_the_rest(model, axis)
    _set_loss(model, modules, styles, axis)


def check_plan(model: Module, plan: dict[str, str]) -> None:
    """Check that the plan fits this model on some tensor axis. Errors: those of apply_plan."""
    styles = _assign(model, plan)
    modules = model.named_modules()
    _check_model(model, modules, styles, _all_cuts(modules, styles, 1, 0), sequence=False)


def close_groups(model: Module) -> None:
    """Close the sub-groups that apply_plan made, not the axis itself. Collective over the axis."""
    claims = [p.claim for p in model.parameters() if p.claim is not None and p.claim.is_subgroup]
    for holders in {id(claim.holders): claim.holders for claim in claims}.values():
        holders.close()


# ---- what the plan says --------------------------------------------------------------------------


def _assign(model, plan) -> dict[str, str]:
    """Return {path: style} of the modules that are replaced.

    Errors: ShardingError for an unknown style or pattern, and those of dropouts_on_parts().
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
    styles = {path: style for path, style in found.items() if style is not None}
    return styles | dropouts_on_parts(model, styles)


def _names_there(pattern: str, paths: list[str]) -> str:
    """Return the advice for a pattern that matches none of these."""
    near = nearest(pattern, paths)
    if near is not None:
        return f"did you mean {near}?"
    if not paths:
        return "it has no modules inside"
    return f"its modules are {', '.join(paths[:8])}{', ...' * (len(paths) > 8)}"


def _all_cuts(modules, styles, num_ranks, rank) -> dict[int, Cut]:
    """Return {id of parameter: its cut}.

    Errors: ShardingError if two layers cut one parameter differently.
    """
    cuts: dict[int, Cut] = {}
    for path, name in styles.items():
        style = STYLES[name]
        if style.is_region:
            continue
        module = modules[path]
        _check_style(path, module, name)
        if not style.cuts:
            continue
        cut = _cut(path, module, name, modules[path.rpartition(".")[0]], num_ranks, rank)
        for member, parameter in members_of(module).items():
            if member in style.cuts and cuts.setdefault(id(parameter), cut) != cut:
                raise ShardingError(
                    f"tensor plan: {path} as {name} cuts {parameter.name} otherwise than another "
                    "layer that is tied to it; give both the same style"
                )
    return cuts


def _check_style(path, module, name):
    style = STYLES[name]
    if type(module) not in style.takes:
        raise ShardingError(
            f"tensor plan: {path} is a {type(module).__name__}, which cannot be {name}; wanted "
            f"{' or '.join(kind.__name__ for kind in style.takes)}"
        )
    for member in style.cuts:
        value = vars(module).get(member)
        if value is not None and not isinstance(value, Parameter):
            raise ShardingError(
                f"tensor plan: the {member} of {path} is a constant, which every rank holds whole; "
                "leave it out of the plan"
            )


def _cut(path, module, name, parent, num_ranks, rank) -> Cut:
    """Return this rank's part of the weight.

    Errors: ConfigurationError, with the arithmetic, if the ranks do not divide it.
    """
    style = STYLES[name]
    what, unit = _counted(module, style, parent)
    count = module.weight.shape[style.dim] // unit
    if count % num_ranks == 0 or style.is_uneven and count > num_ranks:
        start, stop = even_span(count, num_ranks, rank)
        longest, is_even = -(-count // num_ranks) * unit, count % num_ranks == 0
        return Cut(style.dim, start * unit, stop * unit, longest, is_even)
    if what == "key heads" and num_ranks % count == 0:
        replicas = num_ranks // count
        head = rank // replicas
        return Cut(style.dim, head * unit, (head + 1) * unit, unit, replicas=replicas)
    or_divisor = " or a divisor of it" if what == "key heads" else ""
    wanted = f"at least {num_ranks}" if style.is_uneven else f"a multiple of {num_ranks}"
    raise ConfigurationError(
        f"tensor plan: {path} as {name} has {count} {what} = {num_ranks} tensor ranks x "
        f"{count // num_ranks} + {count % num_ranks}; wanted {wanted}"
        f"{or_divisor}: change the model, the tensor size or the plan"
    )


def _counted(module, style: TensorStyle, parent) -> tuple[str, int]:
    """Return what a weight is cut between, and how many elements of its dim make one."""
    if not issubclass(kind_of(parent), SelfAttention):
        return style.counted, 1
    if module in (parent.key, parent.value, parent.key_norm):
        return "key heads", parent.head_dim
    return "heads", parent.head_dim


def _check_model(model, modules, styles, cuts, sequence):
    """Raise ShardingError if the rest of the model does not fit the layers that are cut."""
    if any(parameter.claim is not None for parameter in model.parameters()):
        raise ShardingError(
            "a tensor plan was applied to this model before; build it anew to apply another"
        )
    if sequence and not (isinstance(model, GPT) and styles == _assign(model, default_plan(model))):
        raise ShardingError(
            "sequence parallelism is for a GPT under its default plan; apply default_plan(model), "
            "or without sequence=True"
        )
    layers = {path for path, name in styles.items() if not STYLES[name].is_region}
    for path, module in modules.items():
        own = [member for member in members_of(module).values() if isinstance(member, Parameter)]
        if path not in layers and any(id(parameter) in cuts for parameter in own):
            raise ShardingError(
                f"tensor plan: {path} is not in it, but is tied to a layer that is cut; name both"
            )
        if path not in layers and own and _is_inside_region(path, styles):
            raise ShardingError(
                f"tensor plan: {path} is inside a region, where the gradient of x is summed over "
                "ranks, but is not cut; name it too, or make its layers column and row without a "
                "region"
            )
    _check_loss(model, modules, styles)


def _check_loss(model, modules, styles):
    heads = _cut_heads(modules, styles)
    if len(heads) > 1 or heads and type(model.loss) is not CrossEntropy:
        raise ShardingError(
            f"tensor plan: {', '.join(heads)} as {styles[heads[0]]} leaves the logits cut, which "
            "only one last layer before a CrossEntropy may do, but the loss is "
            f"{model.loss!r}; leave it out of the plan"
        )


def _cut_heads(modules, styles) -> list[str]:
    """Return the paths of the layers whose outputs stay cut."""
    return [path for path, name in styles.items() if type(modules[path]) in STYLES[name].leaves_cut]


def _is_inside_region(path, styles) -> bool:
    """Return whether the module, or one above it, is a region."""
    regions = (outer for outer, name in styles.items() if STYLES[name].is_region)
    return any(f"{path}.".startswith(f"{outer}.") for outer in regions)


# ---- the new layers ------------------------------------------------------------------------------


def _sliced(model, cuts, group) -> dict[int, SlicedParameter]:
    """Return {id of parameter: this rank's box of it, claimed}. Collective over the group."""
    parts = {id(p): cuts[id(p)].slice_of(p) for p in model.parameters() if id(p) in cuts}
    claims = {1: SHARDED}
    for replicas in sorted({cut.replicas for cut in cuts.values()} - {1}):
        holders = group.split(group.rank // replicas, group.rank)
        claims[replicas] = Claim("partial", holders, is_subgroup=True)
    for key, part in parts.items():
        part.claim = claims[cuts[key].replicas] if cuts[key].is_even else UNEVEN
    return parts


def _sequence_sliced(model, modules, axis) -> dict[int, Module]:
    """Return the positions and dropouts that see a slice of the sequence, by the id of the module.

    Norms and biases need no change.
    """
    replaced: dict[int, Module] = {
        id(module): SlicedDropout(axis, module, SEQUENCE_DIM)
        for module in modules.values()
        if type(module) is Dropout
    }
    positions = model.embedding.positions
    if positions is not None:
        replaced[id(positions)] = SequenceSlicedEmbedding(axis, positions.weight)
    return replaced


def _claim_terms(modules, styles, axis):
    """Claim the parameters that each rank uses for its part only: they have terms of gradients."""
    for path, name in styles.items():
        for member, parameter in members_of(modules[path]).items():
            if member in STYLES[name].terms:
                parameter.claim = parameter.claim or Claim("partial", axis.group)


def _claim_the_rest(model, axis):
    """Claim the parameters that are not cut.

    Their gradients are equal on all ranks, or under sequence parallelism the terms of slices.
    """
    claim = Claim("partial" if axis.sequence else "replicated", axis.group)
    for parameter in model.parameters():
        parameter.claim = parameter.claim or claim


def _set_loss(model, modules, styles, axis):
    for path in _cut_heads(modules, styles):
        num_classes = modules[path].weight.shape[0]
        model.loss = VocabularyParallelCrossEntropy(axis, num_classes, model.loss.ignore_index)
