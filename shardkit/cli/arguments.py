"""Commands and the types of their arguments; argparse shows what they refuse."""

from argparse import ArgumentParser, ArgumentTypeError, HelpFormatter, RawDescriptionHelpFormatter
from math import inf

from ..checkpoint.choice import BEST, NEWEST
from ..errors import ConfigurationError
from ..files.paths import usable_path


def add_command(
    commands, name: str, run, text: str, *, takes_settings=False, **more
) -> ArgumentParser:
    """Return the parser of a new command.

    run              (arguments, settings) -> exit code
    text             its line in the list of commands, and what stands above its options: as it is
                     written if a line in it is indented
    takes_settings   --section.key=value are its arguments too
    more             for argparse
    """
    brief, _, description = text.partition("\n\n")
    is_written = "\n  " in description
    how = {
        "allow_abbrev": not takes_settings,
        "formatter_class": RawDescriptionHelpFormatter if is_written else HelpFormatter,
    }
    parser = commands.add_parser(name, help=brief, description=description, **{**how, **more})
    parser.set_defaults(run=run, takes_settings=takes_settings)
    return parser


def option(parser, usage: str, text: str, **how) -> None:
    """Add an argument to a command: "path", "--output FILE", or "--json", which is True if given.

    text   its help; a default is told behind it, where the text tells none
    how    for argparse, but for the type of a FILE or PATH
    """
    name, _, metavar = usage.partition(" ")
    if metavar:
        how["metavar"] = metavar
        how.setdefault("type", local_path if metavar in ("FILE", "PATH") else str)
    elif not how:
        how["action"] = "store_true"
    if how.get("default") not in (None, []) and "default:" not in text:
        text = "; ".join(filter(None, (text, "default: %(default)s")))
    parser.add_argument(name, help=text, **how)


def add_averaged(parser: ArgumentParser) -> None:
    """Add the option --averaged to a command that reads weights."""
    option(
        parser,
        "--averaged",
        "with the moving average of the weights, which optimizer.ema_decay keeps",
    )


def add_checkpoint(parser: ArgumentParser) -> None:
    """Add the option --checkpoint to a command that reads one of the checkpoints of a run."""
    option(
        parser,
        "--checkpoint best|newest|STEP",
        "which checkpoint: of the lowest validation loss, the newest, or of a step; default: "
        "the best where run.patience is set, else the newest",
        type=_choice,
    )


def _choice(text: str) -> str | int:
    """Return which checkpoint is meant. Errors: ArgumentTypeError."""
    if text.isdecimal():
        return int(text)
    if text not in (BEST, NEWEST):
        raise ArgumentTypeError(f"{text!r}; wanted {BEST}, {NEWEST}, or a step such as 300")
    return text


def add_trust(parser: ArgumentParser) -> None:
    """Add the option --trust to a command that runs the task of a run folder."""
    option(
        parser,
        "--trust PATH",
        "file or folder whose code may run if the run folder names it as its task; may be "
        "given again",
        action="append",
        default=[],
    )


def local_path(text: str) -> str:
    """Return a path; ~ is the home folder. Errors: ArgumentTypeError."""
    if not text:
        raise ArgumentTypeError("nothing is given; wanted a path")
    try:
        return usable_path(text)
    except ConfigurationError as error:
        raise ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Return an integer >= 1. Errors: ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text}; wanted an integer, at least 1")
    return int(text)


def tokens(text: str) -> float:
    """Return a number above 0, such as 300e9. Errors: ArgumentTypeError."""
    return _number(text, "a number of tokens; wanted one like 300e9")


def seconds(text: str) -> float:
    """Return a finite number of seconds above 0. Errors: ArgumentTypeError."""
    return _number(text, "a time; wanted a number of seconds, above 0")


def tolerance(text: str) -> float:
    """Return a finite number >= 0. Errors: ArgumentTypeError."""
    return _number(text, "a tolerance; wanted a number, at least 0, such as 1e-6", takes_0=True)


def _number(text: str, wanted: str, *, takes_0: bool = False) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < inf or number == 0 and not takes_0:
        raise ArgumentTypeError(f"{text} is not {wanted}")
    return number
