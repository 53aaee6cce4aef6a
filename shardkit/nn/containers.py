"""Modules by name, and parameters in a row or by name; their owner decides what they do together.

What they hold are their attributes, as those of any module.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self, TypeAlias

from .module import Module, members_of
from .parameter import Parameter
from .recorded import record

_Pairs: TypeAlias = Iterable[tuple[str, Any]]
_Named: TypeAlias = Mapping[str, Any] | _Pairs


class ModuleDict(Module):
    """Modules by names.

    Parameters
    ----------
    modules
        {name: module}, or (name, module) pairs.

    Raises
    ------
    TypeError
        On what is no Module.
    KeyError
        On a name with a dot, or of an attribute of the class.

    Examples
    --------
    >>> heads = nn.ModuleDict({"mean": nn.Linear(4, 1), "spread": nn.Linear(4, 1)})
    >>> list(heads), heads["mean"]
    (['mean', 'spread'], Linear(in_features=4, out_features=1))
    """

    _kind: type = Module

    def __init__(self, modules: _Named = ()) -> None:
        self._add(modules)

    def _add(self, modules: _Named) -> None:
        for name, member in dict(modules).items():
            self._check(name, member)
            setattr(self, name, member)
        if type(self) in (ModuleDict, ParameterDict):  # a class of one's own has its own arguments
            record(self, (members_of(self),), {})

    def _check(self, name, member):
        if not isinstance(member, self._kind):
            raise TypeError(
                f"{type(self).__name__}[{name!r}] is a {type(member).__name__}; wanted a "
                f"{self._kind.__name__}"
            )
        is_text = isinstance(name, str) and name != "" and "." not in name
        if not is_text or hasattr(type(self), name):
            raise KeyError(
                f"{type(self).__name__} with the name {name!r}; wanted text without dots that is "
                "no attribute of the class"
            )

    def __setitem__(self, name: str, module: Any) -> None:
        self._add({name: module})

    def __getitem__(self, name: str) -> Any:
        return members_of(self)[name]

    def __contains__(self, name: object) -> bool:
        return name in members_of(self)

    def __len__(self) -> int:
        return len(members_of(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(members_of(self))

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return members_of(self).keys()

    def values(self) -> ValuesView[Any]:
        """Return what it holds."""
        return members_of(self).values()

    def items(self) -> ItemsView[str, Any]:
        """Return (name, what it is)."""
        return members_of(self).items()


class ParameterDict(ModuleDict):
    """Parameters by names.

    Parameters
    ----------
    modules
        {name: Parameter}, or (name, Parameter) pairs.
    """

    _kind = Parameter


class ParameterList(Module):
    """Parameters in a row, named "0", "1", ...

    Parameters
    ----------
    parameters
        In their order.
    """

    def __init__(self, parameters: Iterable[Parameter] = ()) -> None:
        self.extend(parameters)

    def append(self, parameter: Parameter) -> Self:
        """Add one at the end; return the list."""
        return self.extend([parameter])

    def extend(self, parameters: Iterable[Parameter]) -> Self:
        """Add some at the end; return the list.

        Raises
        ------
        TypeError
            On what is no Parameter.
        """
        for parameter in parameters:
            if not isinstance(parameter, Parameter):
                raise TypeError(
                    f"element {len(self)} of {type(self).__name__} is a "
                    f"{type(parameter).__name__}; wanted a Parameter"
                )
            setattr(self, str(len(self)), parameter)
        if type(self) is ParameterList:
            record(self, (tuple(self),), {})
        return self

    def __len__(self) -> int:
        return len(members_of(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(members_of(self).values())

    def __getitem__(self, index: int) -> Any:
        return list(self)[index]
