"""What MkDocs makes when it builds the site: the page of the commands, from their parser."""

import os
import re

from mkdocs.structure.files import File

from shardkit.cli import make_parser
from shardkit.task.load import DEFAULT_TASK, load_task
from shardkit.train.settings import configuration_of

_WIDTH = "88"  # columns: what a page shows without scrolling


def on_files(files, config):
    """Add command-line.md to the pages."""
    files.append(File.generated(config, "command-line.md", content=command_line()))
    return files


def command_line() -> str:
    """Return the page: the help of every command, and the settings of a run as tables."""
    os.environ["COLUMNS"] = _WIDTH  # argparse wraps its help to this
    main, commands = make_parser()
    parts = ["# Commands and settings", "", main.epilog, ""]
    for name, command in commands.items():
        parts += [f"## shardkit {name}", "", "```text", command.format_help().strip(), "```", ""]
    parts += ["## Settings of a run", "", *_settings()]
    return "\n".join(parts)


def _settings():
    yield (
        "Settings of the default task, `language`. They stand in a TOML file under `[section]`, or "
        "on the command line as `--section.key=value`. `shardkit train --task NAME --help` lists "
        "those of another task."
    )
    yield ""
    for line in configuration_of(load_task(DEFAULT_TASK)).help_text().splitlines():
        setting = re.match(r"\s*--(\w+\.\w+)\s+(.*)", line)
        if setting:
            yield f"| `{setting[1]}` | {_cell(setting[2])} |"
        elif line:
            title, _, meaning = line.partition("] ")
            yield f"### {title}{']' if meaning else ''}".rstrip(":")
            yield from ("", meaning, "", "| setting | default and meaning |", "|---|---|")
        else:
            yield ""


def _cell(text: str) -> str:
    default, _, meaning = text.partition(": ")
    return f"`{default}`: {meaning}".replace("|", "\\|")
