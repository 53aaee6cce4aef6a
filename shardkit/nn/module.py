"""Modules: a model as a tree of named parameters and buffers.

    class TwoLayers(Module):
        def __init__(self):
            self.up = Linear(4, 16)              # parameters up.weight, up.bias
            self.down = Linear(16, 1)            # parameters down.weight, down.bias

        def forward(self, x):
            return self.down(ops.gelu(self.up(x)))

    model = TwoLayers().finish(seed=0)           # every parameter now knows its name and seed

A module owns no arrays and no machinery: its members are its attributes, and everything else
follows from walking them.
"""

from collections.abc import Iterable, Iterator, Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from ..annotations import FilePath, Shape, Tree
from ..array.backend import to_host
from ..errors import CheckpointError, ConfigurationError, ShapeError
from ..habits import named_here
from ..public import GivenBy
from ..tree import is_tree, map_tree, structure
from .autograd import Tensor, is_numbers, no_grad
from .buffer import Buffer
from .context import (
    ForwardContext,
    current_context,
    current_surroundings,
    forward_context,
    note_input,
    surrounded_by,
)
from .freezing import freeze
from .habits import habit_of
from .kept import MAKING, making_of
from .looks import look_of
from .parameter import Parameter, fitting
from .recorded import arguments_of, record, recorded
from .states import are_equal, array_in_state, check_names, given_state
from .trees import arrays_of, as_tensors, entering, given_arrays, given_tensors

_Output = TypeVar("_Output", covariant=True)
_HARMLESS = frozenset((bool, int, float, str, type(None), Parameter, Buffer))  # attributes
_CONTAINERS = (dict, list, tuple, set, frozenset)


class _Returns(Protocol[_Output]):
    """What a call returns is what forward() says that it returns."""

    def forward(self, *args: Any, **kwargs: Any) -> _Output: ...


def _told_nothing(x: Any, context: ForwardContext) -> ForwardContext:
    """Return the context of a pass over x as it is."""
    return context


@recorded
class Module:
    """A part of a model: parameters and smaller modules, and a forward pass over them.

    What is assigned to attributes (Parameter, Buffer, Module, ModuleList) belongs to it, in the
    order of assignment, under the attribute's name. A subclass writes `__init__` and forward, and
    need not call or register a thing. Attributes may have any name but those of methods that a
    module is asked for (TAKEN, below). `blocks`, `members`, `configuration`, `check_input` and
    `output_shape` are asked of the class, so that attributes of these names are free.

    The contract with the engine that shards a model: chaining `for _, block in blocks(): x =
    block(x)` IS the forward pass, a block is a pure function of (x, parameters, current_context()),
    and `loss` is a Loss or a function.
    """

    is_table = False  # its weight is looked up and not multiplied
    _told_by = staticmethod(_told_nothing)  # what x says to all layers, see context_of_pass
    loss: Any = None  # what training makes small; None: the training configuration names one
    metrics: dict[str, Any] = {}  # {name: Metric}: what evaluation reports beside the loss
    path_in_model: str | None = None  # dotted; "" for the root; None before finish()

    if TYPE_CHECKING:

        @classmethod
        def from_checkpoint(cls, path: FilePath, **changes: Any) -> Self: ...

    else:  # that file stands to the right of this room
        from_checkpoint = GivenBy("shardkit.checkpoint.models")

        def __getattr__(self, name: str) -> Any:
            return habit_of(self, name, _modules_in)

    def __init_subclass__(cls, **given: Any) -> None:
        """Let forward() be the blocks of a class that says blocks() and not forward()."""
        super().__init_subclass__(**given)
        if callable(vars(cls).get("blocks")) and "forward" not in vars(cls):
            setattr(cls, "forward", Module.forward)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in TAKEN and (isinstance(value, (Module, Tensor)) or not callable(value)):
            raise ConfigurationError(
                f"{type(self).__name__}.{name} cannot be assigned a {type(value).__name__}: it "
                f"would hide Module.{name}, which a module needs; give the attribute another name"
            )
        kept = vars(self).get(name)
        if isinstance(kept, Tensor) and not isinstance(value, _MEMBERS):
            value = _with_values(kept, value, f"{type(self).__name__}.{name}")
        super().__setattr__(name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output for x: by default of the blocks, one after the other."""
        here = current_context()
        context = context_of_pass(self, args[0], here) if args else here
        if context is not here:
            with forward_context(context):
                return self.forward(*args, **kwargs)
        for _, block in _said_blocks(self):
            if block is self:
                raise NotImplementedError(
                    f"{type(self).__name__} has no forward(); write def forward(self, x) in the "
                    "class, or def blocks(self)"
                )
            args, kwargs = (block(*args, **kwargs),), {}
        return args[0]

    def __call__(self: _Returns[_Output], *args: Any, **kwargs: Any) -> _Output:
        return (current_surroundings() or _FIRST).call(self, args, kwargs)

    def blocks(self) -> "list[tuple[str, Module]]":
        """Return (name, module) in the order of the forward pass.

        A block is what is gathered together, or placed on a pipeline stage. A module that does not
        say is one block, and the modules inside of it are gathered as they are called.
        """
        return [("", self)]

    def check_input(self, x: Any) -> None:
        """Raise ShapeError unless forward() takes x, an array [samples, ...] or a tree of them.

        Nothing is computed, and there is no communication. By default the first block decides; a
        module that is its own only block takes anything.
        """
        for _, first in blocks_of(self)[:1]:
            if first is not self:
                check_input_of(first, x)

    def output_shape(self, input_shape: Shape) -> "tuple[int, ...] | None":
        """Return the output's shape for an input of this shape, or None if it does not say.

        With it targets can be checked.
        """
        return None

    def configuration(self) -> dict:
        """Return {name: value} of arguments that build the same model: those that it was made with.

        A class may say others. What a checkpoint can hold of them: checkpoint/values.py.
        """
        return arguments_of(making_of(self))

    # The tree.

    def members(self) -> "dict[str, Parameter | Buffer | Module]":
        """Return what this module is made of, one level deep, in order."""
        return {name: value for name, value in vars(self).items() if isinstance(value, _MEMBERS)}

    def named_modules(self) -> "dict[str, Module]":
        """Return {dotted path: module}, itself first under ""; each once, under its first path."""
        return {path: member for path, member in _tree_of(self) if isinstance(member, Module)}

    def named_parameters(self) -> dict[str, Parameter]:
        """Return {dotted name: parameter} in canonical order.

        A tied parameter is listed once, under its first name.
        """
        return {path: member for path, member in _tree_of(self) if isinstance(member, Parameter)}

    def named_buffers(self) -> dict[str, Buffer]:
        """Return {dotted name: buffer} in canonical order, each once: values that are not trained,
        but saved and copied with the model.
        """
        return {path: member for path, member in _tree_of(self) if isinstance(member, Buffer)}

    def parameters(self) -> list[Parameter]:
        """Return the parameters in canonical order, each once."""
        return list(self.named_parameters().values())

    @property
    def parameter_count(self) -> int:
        """The elements of all parameters, each counted once."""
        return sum(parameter.size for parameter in self.parameters())

    def freeze(self, *patterns: str) -> list[str]:
        """Let parameters keep their values, before the model is sharded; return their names.

        Parameters
        ----------
        patterns
            Of dotted names, see freezing.py; none: all parameters of this module.
        """
        return freeze(self, patterns or ["*"])

    def finish(self, seed: int = 0) -> "Module":
        """Tell every parameter and buffer its name and seed, and every module its path.

        Returns the module.

        The outermost module that is finished gives the names; the first seed given stays: a GPT
        inside a larger model keeps its own. Repeating it changes nothing, nor does finishing a part
        of a finished model.

        Raises
        ------
        ConfigurationError
            If modules, parameters or buffers are in a plain list, tuple, dict or set and nowhere
            else, or an attribute takes a gradient and is no Parameter: they would not be trained.
        """
        if self.path_in_model:
            return self
        tree = dict(_tree_of(self))
        _check_attributes(tree.values(), is_first=self.path_in_model is None)
        for path, member in tree.items():
            if isinstance(member, Module):
                member.path_in_model = path
            else:
                member.name = path
                member.seed = seed if member.seed is None else member.seed
        return self

    # Values.

    def state_dict(self) -> dict:
        """Return {name: copy of the parameter or buffer as a NumPy array}, parameters first."""
        if self.path_in_model is None:
            self.finish()
        return {name: to_host(p.array).copy() for name, p in _kept_by(self).items()}

    def load_state_dict(self, state: dict, strict: bool = True) -> dict[str, list[str]]:
        """Copy these values into parameters and buffers; nothing changes if anything is wrong.

        A tied parameter may stand there under each of its names, as in PyTorch, with equal values.

        Parameters
        ----------
        state
            {name: array, or tensor of PyTorch}.
        strict
            False: names that the other side lacks are left alone.

        Returns
        -------
        dict[str, list[str]]
            {"missing_names": in the module and not in the state, "unexpected_names": the reverse}.

        Raises
        ------
        CheckpointError
            On missing or unknown names (if strict), if no name is shared, or on names of one
            parameter with other values.
        ShapeError
            On another shape, or what are no real numbers.
        ConfigurationError
            On values that the dtype of a parameter or buffer does not hold: they would become
            infinite, or wrap.
        TypeError
            If it is no dict.
        """
        kept = _kept_by(self)
        state = _by_first_names(self, given_state(state))
        check_names(type(self).__name__, kept, state, strict=strict)
        shared = [name for name in kept if name in state]
        values = [_fitting(name, kept[name], state[name]) for name in shared]
        for name, array in zip(shared, values):
            kept[name].array = array
        return {
            "missing_names": [name for name in kept if name not in state],
            "unexpected_names": [name for name in state if name not in kept],
        }

    def predict(self, x: Any) -> Tree:
        """Return the output for x as a NumPy array, without recording and without dropout.

        x is an array or a tree of arrays, and so is the output. Floating numbers are cast to the
        dtype of the parameters first, as a sharded model casts them.
        """
        if self.path_in_model is None:
            self.finish()
        x = given_arrays(x)
        for parameter in self.parameters()[:1]:
            x = entering(x, parameter.dtype)
        context = context_of_pass(self, x, ForwardContext())
        with no_grad(), forward_context(context):
            x = as_tensors(x)
            for _, block in blocks_of(self):  # as on a mesh
                x = block(x)
            return map_tree(to_host, arrays_of(x))

    def __repr__(self) -> str:
        return look_of(self, _modules_in(self))


def _kept_by(module) -> "dict[str, Parameter | Buffer]":
    return {**module.named_parameters(), **module.named_buffers()}


class _Plain:
    """The surroundings of modules below the first that is called, where nobody lends parameters."""

    lends = False

    def call(self, module, args: tuple, kwargs: dict):
        note_input(args)
        return module.forward(*args, **kwargs)

    def lend(self, parameter) -> None:
        """Do nothing: a parameter that is released stays so."""


class _First(_Plain):
    """The surroundings of a module that no other module called."""

    def call(self, module, args: tuple, kwargs: dict):
        """Return what it returns; arrays become Tensors before."""
        if module.path_in_model is None:
            module.finish()
        if kwargs or not all([isinstance(each, Tensor) for each in args]):
            first = next(iter(module.named_parameters().values()), None)
            args, kwargs = given_tensors(args, kwargs, None if first is None else first.dtype)
        note_input(args)
        with surrounded_by(_PLAIN):
            return module.forward(*args, **kwargs)


_PLAIN, _FIRST = _Plain(), _First()


_MEMBERS = Parameter, Buffer, Module


def _tree_of(module):
    """Return the (dotted path, module, parameter or buffer), parents first, each object once."""
    found: dict[int, tuple] = {}
    _add_tree(found, "", module)
    return found.values()


def _add_tree(found, path, member):
    if id(member) in found:
        return
    found[id(member)] = path, member
    if isinstance(member, Module):
        above = f"{path}." if path else ""
        for name, below in members_of(member).items():
            _add_tree(found, above + name, below)


TAKEN = frozenset(name for name in vars(Module) if not name.startswith("__")) - {
    "blocks",
    "check_input",
    "configuration",
    "is_table",
    "loss",
    "members",
    "metrics",
    "output_shape",
    "path_in_model",
}


def members_of(module: Module) -> "dict[str, Parameter | Buffer | Module]":
    """Return what the class says the module is made of, whatever its attribute `members` is."""
    return type(module).members(module)


def blocks_of(module: Module) -> "list[tuple[str, Module]]":
    """Return what the class says its blocks are, whatever its attribute `blocks` is.

    A class that says forward() and derives from one that says blocks() is one block.

    Errors: ConfigurationError if they are no list of (name, module).
    """
    return [("", module)] if _redefines_forward(type(module)) else _said_blocks(module)


def _redefines_forward(cls: type[Module]) -> bool:
    """Return True if forward() is of a class that derives from the one whose blocks() it has."""
    said = next(each for each in cls.__mro__ if "blocks" in vars(each))
    forward = next(each for each in cls.__mro__ if "forward" in vars(each))
    return said is not Module and forward is not said and issubclass(forward, said)


def _said_blocks(module: Module) -> "list[tuple[str, Module]]":
    """Return what blocks() returns. Errors: ConfigurationError."""
    blocks = type(module).blocks(module)
    if not isinstance(blocks, (list, tuple)) or not all(map(_is_block, blocks)):
        raise ConfigurationError(
            f"{type(module).__name__}.blocks() returned {blocks!r:.100}; wanted a list of (name, "
            "module)"
        )
    return list(blocks)


def context_of_pass(module: Module, x, context: ForwardContext) -> ForwardContext:
    """Return the context of a pass over x, an array, a Tensor or a tree of them."""
    return type(module)._told_by(x, context)


def check_input_of(module: Module, x) -> None:
    """Ask the class whether forward() takes x, whatever the attribute `check_input` is.

    Errors: ShapeError also where the class takes a tree for one array.
    """
    try:
        type(module).check_input(module, x)
    except AttributeError as error:
        if not is_tree(x):
            raise
        raise ShapeError(
            f"{type(module).__name__} was given x = {structure(x)}, but it looks for what one "
            f"array has ({error}); pass one array, or begin with a block that takes the tree"
        ) from error


def _modules_in(module: Module) -> "dict[str, Module]":
    """Return the members that are modules."""
    members = members_of(module).items()
    return {name: member for name, member in members if isinstance(member, Module)}


def output_shape_of(module: Module, input_shape: Shape) -> "tuple[int, ...] | None":
    """Return the output's shape by the class, whatever the attribute `output_shape` is."""
    return type(module).output_shape(module, input_shape)


def _is_block(value) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Module)


def configuration_of(module: Module) -> dict:
    """Return the arguments by the class, whatever the attribute `configuration` is."""
    return type(module).configuration(module)


def exchange(module: Module, replaced: dict[int, Module]) -> None:
    """Put modules in place of others, wherever the tree below `module` holds them.

    replaced   {id of a module: what takes its place}
    """
    for owner in module.named_modules().values():
        for name, value in list(vars(owner).items()):
            if id(value) in replaced:
                setattr(owner, name, replaced[id(value)])
            elif isinstance(value, list):
                value[:] = [replaced.get(id(element), element) for element in value]


def _with_values(kept, value, where):
    """Return a buffer with the numbers that are assigned to its attribute, as in PyTorch.

    Errors: ConfigurationError on a parameter, which would be trained no more.
    """
    if not (is_numbers(value) or isinstance(value, Number)):
        return value
    if isinstance(kept, Parameter):
        raise ConfigurationError(
            f"{where} is a parameter, but was assigned a {type(value).__name__}, which would not "
            f"be trained; wanted {where}.array = values for other values, or a nn.Parameter"
        )
    if isinstance(kept, Buffer):
        with no_grad():
            kept.copy_(fitting(kept, value))
        return kept
    return value


def _check_attributes(tree, *, is_first):
    """Raise ConfigurationError on attributes whose parameters would not be trained.

    is_first   no forward pass may have kept tensors that it was given
    """
    known = {id(member) for member in tree}
    for module in tree:
        for name, value in vars(module).items() if isinstance(module, Module) else ():
            if type(value) in _HARMLESS or name == MAKING:
                continue
            if isinstance(value, _CONTAINERS):
                _check_container(module, name, value, known)
            elif named_here(value):
                raise ConfigurationError(
                    f"{type(module).__name__}.{name} is a {type(value).__name__}{named_here(value)}"
                )
            elif is_first and isinstance(value, Tensor):
                _check_tensor(module, name, value)


def _check_container(module, name, value, known):
    """Raise ConfigurationError if a plain container has members that are not in the tree."""
    if any(id(member) not in known for member in _contained(value)):
        raise ConfigurationError(
            f"{type(module).__name__}.{name} is a plain {type(value).__name__} of modules, "
            "parameters or buffers, which would not be kept and not be trained; use "
            "ModuleList, or one attribute each"
        )


def _check_tensor(module, name, value):
    """Raise ConfigurationError if an attribute takes a gradient, but is no Parameter."""
    if not value.is_parameter and value.requires_grad:
        raise ConfigurationError(
            f"{type(module).__name__}.{name} is a Tensor that takes a gradient, but no "
            f"Parameter, so it would not be trained; make it a Parameter({value.shape}, init), "
            "or leave out requires_grad=True"
        )


def _contained(value):
    """Return the modules, parameters and buffers in a container, and in containers in it."""
    left, seen = [value], {id(value)}  # a list may be in itself
    while left:
        inside = left.pop()
        for element in inside.values() if isinstance(inside, dict) else inside:
            if isinstance(element, _MEMBERS):
                yield element
            elif isinstance(element, _CONTAINERS) and id(element) not in seen:
                seen.add(id(element))
                left.append(element)


def _by_first_names(module: Module, state: Mapping) -> dict:
    """Return a state with each parameter and buffer under its first name alone.

    Errors: CheckpointError if it has other values under another name of the same.
    """
    first_names = first_names_of(module)
    found: dict[str, Any] = {}
    for name, values in state.items():
        first = first_names.get(name, name)
        if first in found and not _are_same(name, found[first], values):
            raise CheckpointError(
                f"{name} differs from another tensor of the state, but both are {first} in this "
                f"{type(module).__name__}"
            )
        found[first] = values
    return found


def first_names_of(module: Module) -> dict[str, str]:
    """Return {each dotted name of a parameter or buffer: its first name}."""
    names = {id(member): name for name, member in _kept_by(module).items()}
    return {path: names[id(member)] for path, member in _paths_below(module, "", ())}


def _paths_below(
    module: Module, path: str, above: "tuple[Module, ...]"
) -> "Iterator[tuple[str, Parameter | Buffer]]":
    """Yield (dotted name, parameter or buffer), each under all its names.

    above   the modules that this one is in, which it may hold as attributes
    """
    above = (*above, module)
    for name, member in members_of(module).items():
        if not isinstance(member, Module):
            yield path + name, member
        elif not any(member is each for each in above):
            yield from _paths_below(member, f"{path}{name}.", above)


def _are_same(name: str, one: Any, other: Any) -> bool:
    return are_equal(array_in_state(name, one), array_in_state(name, other))


def _fitting(name: str, member: "Parameter | Buffer", values: Any) -> Any:
    """Return what a state holds as an array for this parameter or buffer. Errors: ShapeError."""
    array = array_in_state(name, values)
    if array.shape != member.shape:
        what = "buffer" if isinstance(member, Buffer) else "parameter"
        raise ShapeError(
            f"{what} {name} has shape {member.shape}, but the state holds {array.shape}; is it of "
            "a model of other sizes?"
        )
    return fitting(member, array)


class ModuleList(Module):
    """Modules in a row, named "0", "1", ...; their owner decides what they do together.

    Parameters
    ----------
    modules
        In their order.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._modules = list(modules)
        for index, module in enumerate(self._modules):
            if not isinstance(module, Module):
                raise TypeError(
                    f"element {index} of {type(self).__name__} is {type(module).__name__}"
                    f"{named_here(module)}; wanted a Module"
                )
        if type(self) is ModuleList:
            record(self, (tuple(self._modules),), {})  # an iterator is empty now

    def append(self, module: Module) -> Self:
        """Add a module at the end; return the list."""
        ModuleList.__init__(self, [*self._modules, module])
        return self

    def members(self) -> dict[str, Parameter | Buffer | Module]:
        return {str(index): module for index, module in enumerate(self._modules)}

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules)

    def __getitem__(self, index: Any) -> Any:
        return self._modules[index]


def numbered(name: str, modules: Iterable[Module]) -> list[tuple[str, Module]]:
    """Return the modules of a ModuleList with their paths, where its owner calls it this name."""
    return [(f"{name}.{index}", module) for index, module in enumerate(modules)]
