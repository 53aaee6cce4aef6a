"""Settings on the command line: --section.key=value."""

import re

from ..errors import ConfigurationError
from ..settings import read_toml
from ..train.settings import RunConfiguration


def without_settings(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return (arguments for argparse, settings), whatever characters a value holds.

    Both --section.key=value and --section.key value are settings.
    """
    rest = []
    settings = []
    coming = list(arguments)
    while coming:
        argument = coming.pop(0)
        is_setting = re.match(r"--\w+\.\w+(=|$)", argument)
        (settings if is_setting else rest).append(argument)
        if is_setting and "=" not in argument and coming and not coming[0].startswith("--"):
            settings[-1] += "=" + coming.pop(0)
    return rest, settings


def parsed(arguments: list[str]) -> dict:
    """Return {"section.key": value} of --section.key=value and --section.key value."""
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
        settings[name[2:]] = RunConfiguration.parse(name[2:], text)
    return settings


def given_settings(path: str | None, arguments: list[str]) -> dict:
    """Return the settings of the file, overridden by those of the command line."""
    return {**(read_toml(path) if path else {}), **parsed(arguments)}


def configuration(path: str | None, arguments: list[str]) -> RunConfiguration:
    """Return the defaults with the settings of the file and the command line."""
    return RunConfiguration().replace(given_settings(path, arguments))
