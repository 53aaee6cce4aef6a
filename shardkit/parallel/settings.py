"""How a model is sharded and trained: the settings of all wings, and live objects beside them."""

import inspect
import sys
from dataclasses import dataclass, fields
from typing import Any

from ..array.settings import ArraySettings, check_device
from ..comm.backend import CommunicationBackend
from ..comm.settings import TransportSettings
from ..environment import checked_mode
from ..habits import named_here
from ..optim.groups import ParameterGroup
from ..optim.rules import RULES
from ..refusal import check_made
from ..settings import check_fields, setting
from .data.settings import DataSettings
from .domain.settings import DomainSettings
from .pipeline.settings import PipelineSettings
from .step.settings import StepSettings
from .tensor.settings import TensorSettings


def _is_rule(value) -> bool:
    return (
        not isinstance(value, type) and hasattr(value, "update") and hasattr(value, "state_names")
    )


def _is_loss(value) -> bool:
    return not isinstance(value, type) and callable(value) and not named_here(value)


@dataclass(frozen=True, kw_only=True)
class ParallelSettings(
    TransportSettings,
    ArraySettings,
    StepSettings,
    DataSettings,
    DomainSettings,
    TensorSettings,
    PipelineSettings,
):
    """The settings that a file and Python have in common; each wing declares its own."""

    def shared(self) -> dict[str, Any]:
        """Return {name: value} of these settings."""
        return {field.name: getattr(self, field.name) for field in fields(ParallelSettings)}


@dataclass(frozen=True)
class ShardingConfiguration(ParallelSettings):
    """How a model is sharded and trained; every setting is read by the sharded models.

    Parameters
    ----------
    backend
        A CommunicationBackend, initialized or not; all its ranks take part.

    Raises
    ------
    ConfigurationError
        On a bad value; with several ranks where they use it together, on all of them.
    TypeError
        Without a backend.
    """

    backend: Any
    learning_rate: float | None = setting(
        None, "learning rate of SGD or of the rule that is named; None: the rule's own", above=0
    )
    optimizer: Any = setting(
        None,
        "a rule such as AdamW(lr=1e-3), or the name of one; None: SGD",
        holds=_is_rule,
        wanted=f"a rule such as AdamW(lr=1e-3), the name of one ({', '.join(RULES)}), or None: "
        "SGD(lr=learning_rate)",
    )
    loss: Any = setting(
        None,
        "function (prediction, y) -> mean loss, or a Loss object; None: the model's own",
        holds=_is_loss,
        wanted="a function (prediction, y) -> mean loss, a Loss such as CrossEntropy(), or None: "
        "the model's own",
    )
    max_gradient_norm: float | None = setting(
        None, "clip the global norm of the mean gradient to this; None: no clipping", above=0
    )
    parameter_groups: tuple = setting(
        (),
        "sk.ParameterGroup of names, with other constants of the rule",
        holds=lambda groups: all(isinstance(group, ParameterGroup) for group in groups),
        wanted="a tuple of sk.ParameterGroup",
    )
    auto_synchronize_gradients: bool = setting(
        True, "False: train() accumulates local gradients until synchronize_gradients()"
    )
    micro_batches: int = setting(
        1, "number of micro-batches that each data rank cuts its part of a batch into", minimum=1
    )
    tensor_plan: dict | None = setting(
        None,
        "{name pattern: style} for the tensor axis (parallel/tensor/plan.py); None: the default of "
        "GPT and MLP",
        holds=bool,
        wanted="{name pattern: style} with at least one pattern, or None: the default of GPT and "
        "MLP",
    )
    check: bool | None = setting(
        None, "checked mode compares what ranks pass before they use it; None: as SHARDKIT_CHECK"
    )
    seed: int = setting(
        0, "seed of dropout, and of the initial weights of a model that has none of its own"
    )

    def __post_init__(self) -> None:
        if self.backend is None or isinstance(self.backend, (type, str)):
            raise TypeError(
                "ShardingConfiguration needs a backend, for example MPICommunicationBackend(); got "
                f"{self.backend!r}"
            )
        if isinstance(self.optimizer, str) and self.optimizer in RULES:
            object.__setattr__(self, "optimizer", self.named_rule(self.optimizer))
        has_ranks = isinstance(self.backend, CommunicationBackend)
        check_made(self, self._check, self.backend.world_size if has_ranks else 1)

    def named_rule(self, name: str) -> Any:
        """Return the rule of this name, at the learning rate that was given."""
        rule = RULES[name]
        return rule() if self.learning_rate is None else rule(lr=self.learning_rate)

    def _check(self):
        check_fields(self)
        check_device(self)

    @property
    def is_checked(self) -> bool:
        """True in checked mode."""
        return checked_mode() if self.check is None else self.check

    @classmethod
    def for_high_bandwidth(
        cls, backend: CommunicationBackend, **settings: Any
    ) -> "ShardingConfiguration":
        """Return settings for a node or a fast fabric: small units, which gather little memory.

        Parameters
        ----------
        backend, **settings
            As of ShardingConfiguration; settings take precedence.
        """
        return cls(backend, **{"minimum_parameter_group_size": 1024, **settings})

    @classmethod
    def for_low_bandwidth(
        cls, backend: CommunicationBackend, **settings: Any
    ) -> "ShardingConfiguration":
        """Return settings for slow networks: few large messages, gradients as half floats.

        The trained bits differ from those of other settings.

        Parameters
        ----------
        backend, **settings
            As of ShardingConfiguration; settings take precedence.
        """
        slow = {"minimum_parameter_group_size": 262144, "gradient_compression": "float16"}
        return cls(backend, **{**slow, **settings})


def _with_settings(text: str) -> str:
    """Return the docstring with every setting among its parameters."""
    before, rest = inspect.cleandoc(text).split("\n\nRaises\n")
    own = [
        f"{field.name}\n    {field.metadata['text']}"
        for field in fields(ShardingConfiguration)
        if "text" in field.metadata
    ]
    return "\n".join([before, *own, "", "Raises", rest])


if sys.flags.optimize < 2:  # python -OO drops docstrings
    ShardingConfiguration.__doc__ = _with_settings(ShardingConfiguration.__doc__ or "")
