"""Settings on the command line: --section.key=value, and short names of a few.

What type a value has depends on the task, and the task is a setting too: so the text of each value
is kept until the task is known.
"""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from ..arguments import nearest
from ..errors import ConfigurationError
from ..files.paths import usable_path
from ..files.reading import named
from ..files.trust import Trust, find_also_in
from ..settings import read_toml
from ..task.load import DEFAULT_TASK, absolute_task, load_task
from ..train.folder import has_checkpoints, stored_settings, stored_task, task_of_run
from ..train.settings import RunConfiguration, configuration_of, first_settings, resumed

_SHORT = {"--task": "--run.task", "--groups": "--sweep.groups"}


def without_settings(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return (arguments for argparse, settings), whatever characters a value holds.

    Both --section.key=value and --section.key value are settings.
    """
    rest = []
    settings = []
    coming = list(arguments)
    while coming:
        name, equals, value = coming.pop(0).partition("=")
        argument = _SHORT.get(name, name) + equals + value
        is_setting = re.match(r"--\w+\.\w+(=|$)", argument)
        (settings if is_setting else rest).append(argument)
        if is_setting and not equals and coming and not coming[0].startswith("--"):
            settings[-1] += "=" + coming.pop(0)
    return rest, settings


def texts_of(arguments: list[str]) -> dict[str, str]:
    """Return {"section.key": text} of --section.key=text and --section.key text."""
    settings = {}
    rest = list(arguments)
    while rest:
        name, equals, text = rest.pop(0).partition("=")
        if not name.startswith("--"):
            raise ConfigurationError(
                f"unexpected argument {name!r}; settings look like --section.key=value"
            )
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigurationError(f"{name} needs a value: {name}=value")
            text = rest.pop(0)
        settings[name[2:]] = text
    return settings


def _check_is_file(path: str, arguments: list[str]) -> None:
    """Raise ConfigurationError if what stands where a file of settings may is meant otherwise."""
    if re.search(r"\.py:\w+$", path):
        raise ConfigurationError(f"{path} is a task and no file of settings; write --task {path}")
    bare = next((name for name in arguments if re.fullmatch(r"--\w+", name)), None)
    if bare is not None:
        near = nearest(bare[2:], RunConfiguration.keys()) or "section.key"
        raise ConfigurationError(
            f"{bare} {os.path.basename(path)} is no setting; settings have a section: "
            f"--{near}={os.path.basename(path)}"
        )


def parsed(
    arguments: list[str], configuration: type[RunConfiguration] = RunConfiguration
) -> dict[str, object]:
    """Return {"section.key": value} of arguments, as settings of this class."""
    texts = texts_of(arguments)
    return {name: configuration.parse(name, text) for name, text in texts.items()}


def trust_in(paths: list[str], task: str | None) -> Trust:
    """Return the trust in what the user names: with --trust, and as the task of this call.

    Errors: ConfigurationError if nothing is there.
    """
    place = usable_path(task or "").rpartition(":")[0]
    if place.endswith(".py"):
        return Trust.of([*paths, place])
    if place:
        find_also_in(".")
    return replace(Trust.of(paths), modules=(place,) if place else ())


@dataclass(frozen=True)
class Given:
    """The settings of a file, and those of the command line, which count more.

    values   {"section.key": value} of the file
    texts    {"section.key": text} of the command line
    """

    values: dict[str, object]
    texts: dict[str, str]
    path: str | None = None

    @classmethod
    def read(cls, path: str | None, arguments: list[str]) -> "Given":
        """Read a TOML file, if one is named, and arguments. Errors: ConfigurationError."""
        if path is not None and not os.path.exists(path):
            _check_is_file(path, arguments)
        return cls(read_toml(path) if path else {}, texts_of(arguments), path)

    def _named(self) -> AbstractContextManager:
        """Name the file in errors of what can only come from there."""
        return named(self.path) if self.path and not self.texts else nullcontext()

    def first(self, name: str) -> str | None:
        """Return a setting that is needed before the task is known; None if it is not given."""
        value = self.texts.get(name, self.values.get(name))
        with self._named():
            return value and RunConfiguration().replace({name: value}).value(name)

    def configuration(self) -> type[RunConfiguration]:
        """Return the class of the settings of the task that is given."""
        task = self.first("run.task") or DEFAULT_TASK
        with self._named():
            return configuration_of(load_task(task))

    def typed(self, configuration: type[RunConfiguration]) -> dict[str, object]:
        """Return {"section.key": value}. Errors: ConfigurationError on an unknown key."""
        texts = {name: configuration.parse(name, text) for name, text in self.texts.items()}
        if self.path:
            with named(self.path):
                for name in self.values:
                    configuration.key(name)
        return {**self.values, **texts}

    def settings(self) -> RunConfiguration:
        """Return the settings of a start."""
        configuration = self.configuration()
        with self._named():
            return first_settings(configuration, self.typed(configuration))

    def folder(self) -> Path:
        """Return the folder of the run."""
        return Path(self.first("run.folder") or self.configuration()().run.folder)

    def of_run(
        self,
        resume: bool,
        resume_if_any: bool,
        agreed: Callable[[bool], bool],
        trust: Trust = Trust(),
    ) -> tuple[RunConfiguration, bool]:
        """Return (settings, whether the run goes on).

        agreed   function (this rank sees a run in the folder) -> whether all ranks take it for one
        trust    files that the task of a run may be in, if it is not given here
        """
        folder = self.folder()
        if (resume or resume_if_any) and self.first("run.task") is None:
            configuration = configuration_of(task_of_run(folder, trust))
        else:
            configuration = self.configuration()
        if resume or resume_if_any and agreed(has_checkpoints(folder)):
            self._check_task(folder)
            stored = stored_settings(folder, configuration.task_class)
            return resumed(stored, self.typed(configuration)), True
        with self._named():
            return first_settings(configuration, self.typed(configuration)), False

    def _check_task(self, folder: Path) -> None:
        """Raise ConfigurationError if the run in the folder is of another task than the given."""
        name, task = stored_task(folder), self.first("run.task")
        if name is not None and task is not None and absolute_task(name) != absolute_task(task):
            resumed(RunConfiguration().replace({"run.task": name}), {"run.task": task})


def configuration(path: str | None, arguments: list[str]) -> RunConfiguration:
    """Return the defaults with the settings of the file and the command line."""
    given = Given.read(path, arguments)
    made = given.configuration()
    return made().replace(given.typed(made))
