"""Tables for people, by rich, which is imported when the first one is made."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..public import LateModule

if TYPE_CHECKING:
    from rich import console as rich_console
    from rich import table as rich_table
else:
    rich_console = LateModule("rich.console")
    rich_table = LateModule("rich.table")


def table_console(width: int | None = None) -> "rich_console.Console":
    """Return a console on standard output; where that is no terminal, of this width."""
    console = rich_console.Console(highlight=False, soft_wrap=True)
    if width is None or console.is_terminal:
        return console
    return rich_console.Console(highlight=False, soft_wrap=True, width=width)


def table_of(*names: str, right: Collection[int]) -> "rich_table.Table":
    """Return a table with columns of these names, the numbered ones aligned to the right."""
    table = rich_table.Table(box=None)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number in right else "left")
    return table
