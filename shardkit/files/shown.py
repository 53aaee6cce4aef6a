"""Text of files as a terminal may show it: what would command the terminal is spelled out.

an escape character, which could rename the window or type for the user  -->  \\x1b
"""

import re
import unicodedata

_COMMANDS = ("Cc", "Cs", "Zl", "Zp")  # controls, lone surrogates, separators of lines
_TURNING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")  # the order of what is read
_SUSPECTS = re.compile(r"[^\t\n\x20-\x7e]")


def shown(text: str) -> str:
    """Return the text with everything but line ends and tabs that is no character spelled out."""
    return _SUSPECTS.sub(_spelled, text)


def is_plain(text: str) -> bool:
    """Return True for one line without controls, which a script or another program can be given."""
    return shown(text) == text and "\n" not in text and "\t" not in text


def _spelled(found: re.Match) -> str:
    character = found[0]
    if unicodedata.category(character) not in _COMMANDS and not _TURNING.match(character):
        return character
    return character.encode("unicode_escape").decode()
