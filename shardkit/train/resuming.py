"""A run that goes on: what the settings that have changed do, and whether its schedule lasts.

checkpoint   {"batch.sequences": 8, ...}      the settings of its steps
now          {"batch.sequences": 16, ...}     --> a line for each that differs

rate   |\\______floor______|       optimizer.decay_steps < run.steps: the floor is said;
       |   \\0.0  refused  |       steps at a rate of 0.0 would change nothing
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, ConfigurationError
from .settings import RunConfiguration

OTHER_HELD_OUT = (
    "the held-out samples are other ones from here on: losses on them do not compare with those "
    "before"
)
UNKNOWN_POSITION = (
    "the checkpoint does not say where its data went on, and had another batch.sequences: they go "
    "on as if all steps had had this one, so samples of this epoch are left out or read twice"
)
_OF_A_TASK = "it is a setting of the task's own"


@dataclass(frozen=True)
class DataMarks:
    """Fingerprints of the samples of a run, which its checkpoints hold."""

    training: str
    held_out: str

    def stored(self) -> dict[str, str]:
        """Return what a checkpoint says of the samples."""
        return {"fingerprint": self.training, "held_out": self.held_out}

    def check(self, stored: dict, folder: Path) -> None:
        """Raise CheckpointError if a checkpoint was trained on other samples.

        folder   of the data, for the error
        """
        if stored.get("fingerprint") != self.training:
            raise CheckpointError(
                f"{folder} is not the data that this run was trained on; restore it, or start a "
                "new run"
            )

    def changes(self, stored: dict) -> list[str]:
        """Return a line if the held-out samples are other ones than those of a checkpoint."""
        is_same = stored.get("held_out", self.held_out) == self.held_out
        return [] if is_same else [OTHER_HELD_OUT]


def told_settings(settings: RunConfiguration) -> dict:
    """Return {name: value as JSON has it} of the settings that a checkpoint holds."""
    values = {name: settings.value(name) for name in _effects(settings)}
    return json.loads(json.dumps(values))


def _effects(settings: RunConfiguration) -> dict[str, str]:
    """Return {name of a setting that may change: what another value does in a run that goes on}."""
    keys = settings.keys().items()
    plain = {name: _OF_A_TASK for name, key in keys if not key.metadata}
    told = {name: key.metadata["at_resume"] for name, key in keys if "at_resume" in key.metadata}
    return plain | told


def changes(before: dict, settings: RunConfiguration) -> list[str]:
    """Return a line for each setting that is another one than in a checkpoint.

    before   what told_settings() returned for it; {}: it was written before they were stored
    Errors: CheckpointError if that is no table.
    """
    if not isinstance(before, dict):
        raise CheckpointError(
            f"the checkpoint's data_position has settings = {before!r:.100}; wanted a table"
        )
    return [
        f"{name} = {json.dumps(now)} from here on, {json.dumps(before[name])} before: "
        f"{_effects(settings)[name]}"
        for name, now in told_settings(settings).items()
        if name in before and before[name] != now
    ]


def schedule_line(settings: RunConfiguration, before: dict | None = None) -> str:
    """Return a line about the steps after the end of the schedule; "" if there are none to tell of.

    before   as of changes(), of a run that goes on; None: it starts
    Errors: ConfigurationError if a run was made longer than its schedule, which ends at 0.0.
    """
    steps, optimizer = settings.run.steps, settings.optimizer
    end = max(optimizer.decay_steps or steps, optimizer.warmup_steps + 1)
    if optimizer.decay == "constant" or steps <= end:
        return ""
    floor = optimizer.rule().rate(steps)
    what = (
        f"the learning rate is {floor:g} from step {end + 1} to step {steps}, since it comes down "
        f"to optimizer.floor = {optimizer.floor:g} by optimizer.decay_steps = {end}"
    )
    how = f"optimizer.decay_steps={steps} stretches its fall over all of the run"
    if floor > 0:
        return "" if before is None else f"{what}; {how}"
    if before is not None and steps > before.get("run.steps", end):
        raise ConfigurationError(
            f"run.steps = {steps}, but {what}: these steps would change nothing; {how}, "
            "optimizer.floor above 0 lets it go on"
        )
    return f"warning: {what}: these steps change nothing; {how}"
