"""The command line: `shardkit <command>`, also `python -m shardkit <command>`."""

import argparse
import gc
import os
import re
import sys
import time
from functools import partial
from importlib import import_module

from .. import __version__
from ..comm.failure.program import INTERRUPTED_CODE
from ..environment import launcher, line_to_complete
from ..errors import ConfigurationError, LaunchError, ShardkitError
from ..files.notes import replaced_characters, settle_output, tell
from ..public import importing
from ..task.load import BUILT_IN
from .arguments import add_command
from .settings import Given, without_settings

_FILES = {  # {first word of a command: the file that adds it}; the others are not imported
    "train": "train",
    "sweep": "sweep",
    "prepare": "prepare",
    "evaluate": "evaluate",
    "predict": "evaluate",
    "bench": "bench",
    "inspect": "inspect",
    "diff": "checkpoint",
    "convert": "checkpoint",
    "render": "render",
    "plan": "plan",
    "doctor": "doctor",
    "compile": "compile",
    "flags": "flags",
    "generate": "generate",
    "report": "report",
}
_FIRST_MESSAGE_SECONDS = 5.0  # the launcher ends the others when rank 0 has failed
_EXIT_CODES = """Exit codes: 0 done, 1 failed, 2 usage or configuration, 75 stopped early with a
checkpoint (`train --resume` goes on), 130 ended by Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; None: with the arguments of this process."""
    with replaced_characters(sys.stdout), replaced_characters(sys.stderr):
        try:
            code = _run(arguments)
        except KeyboardInterrupt:
            tell("interrupted by Ctrl-C")
            code = INTERRUPTED_CODE
        return code if settle_output() else code or 1


def _run(given: list[str] | None) -> int:
    if line_to_complete():
        _complete(line_to_complete())
    arguments, own_command = _cut(sys.argv[1:] if given is None else given)
    rest, settings = without_settings(arguments)
    parser, commands = make_parser(rest[0] if rest else "")
    if given is None:
        gc.freeze()  # modules stay to the end: no collection, and not the last one, walks them
    if " ".join(rest[:2]) in commands:  # "inspect hang" is a command of its own
        rest[:2] = [" ".join(rest[:2])]
    known, unknown = parser.parse_known_args(rest)
    settings += unknown
    if own_command and not getattr(known, "takes_command", False):
        return _refuse("--", known.command, parser, commands)
    known.own_command = own_command
    if settings and not known.takes_settings:
        return _refuse(settings[0], known.command, parser, commands)
    try:
        return known.run(known, settings)
    except BrokenPipeError:  # the reader of our output has left: `shardkit inspect RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ShardkitError, OSError) as error:
        if isinstance(error, LaunchError) and launcher().rank:
            time.sleep(_FIRST_MESSAGE_SECONDS)  # rank 0 prints the message before any rank exits
        else:
            tell(str(error))
        return getattr(error, "exit_code", 1)


def _complete(line: str) -> None:
    """Tell the shell what may stand at its cursor, by argcomplete, and exit."""
    from argcomplete import autocomplete

    words = [*re.split(r"[ =]+", line), ""]
    parser, commands = make_parser(words[1])
    command = commands.get(words[1], parser)
    if command.get_default("takes_settings"):
        task = words[words.index("--task") + 1] if "--task" in words else ""
        given = Given({"run.task": task} if task in BUILT_IN else {}, {})
        command.add_argument("--task", choices=BUILT_IN)
        for name in given.configuration().keys():
            command.add_argument(f"--{name}")
    autocomplete(parser, exclude=[name for name in commands if " " in name])


def _cut(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return (arguments, the command of the user's own that stands behind --)."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _refuse(argument: str, command: str, parser: argparse.ArgumentParser, commands: dict) -> int:
    """Print which command takes this argument; if none does, exit as argparse does."""
    for name, other in commands.items():
        if name.startswith(f"{command} ") and f"[{argument}" in other.format_usage():
            tell(f"{argument} goes with `{name}`, not with `{command}`")
            return ConfigurationError.exit_code
    return parser.error(f"unrecognized argument {argument}")


def make_parser(word: str = "") -> tuple[argparse.ArgumentParser, dict]:
    """Return the parser, and its commands by name.

    word   the first one of the arguments; if a command begins with it, the parser knows the
           commands of its file alone
    """
    parser = argparse.ArgumentParser(
        prog="shardkit",
        description="Sharded training as an ordinary MPI job.",
        epilog=_EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"shardkit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for file in dict.fromkeys([_FILES[word]] if word in _FILES else _FILES.values()):
        with importing():
            made = import_module(f".{file}", __name__)
        made.add_commands(partial(add_command, commands))
    return parser, commands.choices
