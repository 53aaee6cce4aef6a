"""Text that is shown while it is generated: whole characters, and no part of a stop text.

tokens one by one --decoded--> "Once upon a t\\ufffd"      half of a character waits
                               "Once upon ...###"         what may begin a stop text waits
"""

from collections.abc import Callable, Sequence

import numpy

from ..data.tokenizer import Tokenizer

_NO_CHARACTER = "\ufffd"  # of bytes that are no UTF-8, or not yet


def continuation(tokenizer: Tokenizer, prompt, new) -> str:
    """Return the text of the tokens `new` behind a prompt; both are token numbers [n]."""
    # A token may be written differently at the beginning of a text, so both are decoded whole.
    whole = tokenizer.decode(numpy.concatenate([prompt, new]).astype(numpy.int64))
    return whole[len(tokenizer.decode(prompt)) :]


def until(stop: Sequence[str], text: str) -> str:
    """Return the text up to the first of the stop texts."""
    return text[: min((text.index(each) for each in stop if each in text), default=len(text))]


class TextStream:
    """Shows one text, piece by piece; all pieces together are the text.

    prompt  its token numbers [n]
    stop    texts that end it, none empty
    show    function (piece of the text), called with none that is empty
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt, stop: Sequence[str], show: Callable[[str], None]
    ):
        self._tokenizer, self._prompt, self._stop = tokenizer, prompt, stop
        self._show = show
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> None:
        """Take the next token, and show what is certain now."""
        self._tokens.append(token)
        text = continuation(self._tokenizer, self._prompt, self._tokens)
        ended = until(self._stop, text)
        self._advance(ended if len(ended) < len(text) else self._certain(text))

    def finish(self) -> None:
        """Show what has waited for more tokens."""
        text = continuation(self._tokenizer, self._prompt, self._tokens)
        self._advance(until(self._stop, text))

    def _certain(self, text: str) -> str:
        """Return the text without an end that further tokens may change, or make a stop text."""
        text = text.rstrip(_NO_CHARACTER)
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return text[:-length]
        return text

    def _advance(self, text: str) -> None:
        piece = text[len(self._shown) :]
        if piece:
            self._shown = text
            self._show(piece)
