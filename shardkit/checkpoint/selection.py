"""Selection: which parameters and buffers of a checkpoint a model takes, by their names.

load_model(path, only="model", names="encoder.*")     those that match, and all of them
load_model(path, only="model", strict=False)          those that both sides have

in the model, not stored    missing_names, left as they are
stored, not in the model    unexpected_names, left where they are
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ..errors import CheckpointError, ConfigurationError

AVERAGED = "averaged"
KEPT = ("model/", "buffers/")  # groups that belong to the model itself


@dataclass(frozen=True)
class Selection:
    """What a load takes.

    only     "model": parameters and buffers alone; "averaged": the averages that sk.EMA kept, in
             the place of the parameters; None: go on with everything
    strict   all that match must be on both sides; False: what only one side has is left alone
    names    patterns as in a shell, of dotted names; (): every name
    Errors: ConfigurationError, which is a ValueError, on anything else, and on a part of a run.
    """

    only: str | None = None
    strict: bool = True
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, only=None, strict=True, names=None) -> "Selection":
        """Return the selection of the arguments of load_model."""
        return cls(only, strict, () if names is None else _as_tuple(names))

    def __post_init__(self):
        if self.only not in (None, "model", AVERAGED):
            raise ConfigurationError(f'only = {self.only!r}; wanted None, "model" or "{AVERAGED}"')
        if not isinstance(self.strict, bool):
            raise ConfigurationError(f"strict = {self.strict!r}; wanted True or False")
        if not all(isinstance(name, str) and name for name in self.names):
            raise ConfigurationError(
                f'names = {self.names!r}; wanted a pattern such as "encoder.*", or several'
            )
        if self.is_partial and self.only is None:
            raise ConfigurationError(
                'strict=False and names take a part of a model, so they want only="model": a run '
                "goes on with everything"
            )

    @property
    def is_partial(self) -> bool:
        """True if it may leave parameters or buffers of the model alone."""
        return not self.strict or bool(self.names)

    def matches(self, tensor: str) -> bool:
        """Return True for a path model/NAME or buffers/NAME whose name is selected."""
        if not tensor.startswith(KEPT):
            return False
        name = tensor.split("/", 1)[1]
        return not self.names or any(fnmatchcase(name, pattern) for pattern in self.names)

    def match(self, where: str, here: dict[str, tuple], there: dict[str, tuple]) -> "Match":
        """Return what is taken.

        here, there   {path: (shape, dtype)} of all tensors of the model, and of all that are stored
        Errors: CheckpointError if a tensor of both has another shape or dtype, if nothing is taken,
        or, if strict, some are on one side only.
        """
        mine = [tensor for tensor in here if self.matches(tensor)]
        theirs = [tensor for tensor in there if self.matches(tensor)]
        taken = [tensor for tensor in mine if tensor in there]
        for tensor in taken:
            if here[tensor] != there[tensor]:
                raise CheckpointError(
                    f"{where} holds a {tensor} of {_form(there[tensor])}, but that of the model is "
                    f"{_form(here[tensor])}; leave it out by names="
                )
        found = Match(
            frozenset(taken),
            [_name(tensor) for tensor in mine if tensor not in there],
            [_name(tensor) for tensor in theirs if tensor not in here],
        )
        is_whole = not (found.missing_names or found.unexpected_names)
        if not taken or self.strict and not is_whole:
            raise CheckpointError(
                f"{where} does not fit the names that were asked for: {len(taken)} are in both, "
                f"{_listed('missing', found.missing_names)}, "
                f"{_listed('unexpected', found.unexpected_names)}"
                + ("; strict=False takes those that are in both" if taken else "")
            )
        return found


@dataclass(frozen=True)
class Match:
    """The tensors that a partial load takes.

    taken              paths
    missing_names      in the model and not stored; unexpected_names the other way round
    """

    taken: frozenset[str]
    missing_names: list[str] = field(default_factory=list)
    unexpected_names: list[str] = field(default_factory=list)


def _as_tuple(names) -> tuple:
    if isinstance(names, str):
        return (names,)
    if isinstance(names, (list, tuple)) and names:
        return tuple(names)
    raise ConfigurationError(
        f'names = {names!r}; wanted a pattern such as "encoder.*", or a list of them'
    )


def _name(tensor: str) -> str:
    return tensor.split("/", 1)[1]


def _form(form) -> str:
    shape, dtype = form
    return f"shape {list(shape)} and dtype {dtype}"


def _listed(what: str, names: list[str]) -> str:
    shown = f": {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else ""
    return f"{len(names)} {what}{shown}"
