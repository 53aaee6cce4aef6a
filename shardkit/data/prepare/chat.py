"""Conversations: records of messages, or of prompt and completion, and which of it is an answer.

{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]}
{"prompt": "2 + 2 =", "completion": " 4"}         text, and what ends it; or messages, twice

<|user|>2 + 2?<|assistant|>4<|end|>
                           ~~~~~~~~        what a template marks as generated, or else what an
                                           answer adds to the conversation before it
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...errors import CorpusError
from .readers import RecordError, TextPiece, hint_of
from .template import MARKS, ChatTemplate

MESSAGES = "messages"
ROLES = ("system", "developer", "user", "assistant", "tool")
_PAIR = ("prompt", "completion")
_TOOLS = "tools"
_ANSWER = "assistant"


@dataclass(frozen=True)
class Conversations:
    """Documents are conversations, written by a template.

    field         where messages are
    end_of_text   behind a completion that is no message; "" where the tokenizer has none
    """

    template: ChatTemplate
    end_of_text: str
    field: str = MESSAGES
    has_answers = True

    @property
    def key(self) -> str:
        """A hash of all that decides how a record is written."""
        about = self.template.source, self.template.with_tools, self.template.special
        return f"chat {self.field} {sha256(repr((about, self.end_of_text)).encode()).hexdigest()}"

    def columns(self, path: Path, schema) -> list[str]:
        """Return the columns that are read. Errors: CorpusError without messages."""
        names = schema.names
        has_pair = all(name in names for name in _PAIR)
        if self.field not in names and not has_pair:
            raise CorpusError(
                f"{path} has no column {self.field!r}, nor prompt and completion"
                f"{hint_of(self.field, names)}"
            )
        return [name for name in (self.field, *_PAIR, _TOOLS) if name in names]

    def piece(self, record: Any) -> TextPiece:
        """Return the conversation of a record. Errors: RecordError."""
        if not isinstance(record, dict):
            raise RecordError(f"is a JSON {_kind(record)}; wanted an object with {self.field!r}")
        tools = _tools(record.get(_TOOLS))
        prompt, completion = (record.get(name) for name in _PAIR)
        if record.get(self.field) is not None:
            messages = _messages(record[self.field], self.field)
            return self._piece(messages, tools, 0)
        if prompt is None or completion is None:
            has = hint_of(self.field, record)
            raise RecordError(f"has neither {self.field!r} nor prompt and completion{has}")
        if isinstance(prompt, str) and isinstance(completion, str):
            text = prompt + completion + self.end_of_text
            return TextPiece(_checked(text), True, ((len(prompt), len(text)),))
        before = _messages(prompt, _PAIR[0])
        after = _messages(completion, _PAIR[1])
        if before[-1]["role"] == _ANSWER:
            raise RecordError("has a prompt that ends with an answer; wanted it in the completion")
        return self._piece(before + after, tools, len(before))

    def _piece(self, messages: list[dict], tools: list | None, first: int) -> TextPiece:
        """Return a conversation whose answers from message `first` on are learned."""
        later = range(first, len(messages))
        numbers = [number for number in later if messages[number]["role"] == _ANSWER]
        if not numbers:
            raise RecordError(
                f"has no message of the role {_ANSWER}, so there is no answer to learn"
            )
        text, marked = self.template.written(messages, tools)
        if self.template.marks_answers:
            begin = self._end_of(messages[:first], tools, text) if first else 0
            answers = tuple(span for span in marked if span[0] >= begin)
        else:
            answers = tuple(self._answer(messages, tools, number, text) for number in numbers)
        if not any(start < stop for start, stop in answers):
            raise RecordError("has no answer in what the chat template writes of it")
        return TextPiece(_checked(text), True, answers)

    def _answer(self, messages, tools, number: int, text: str) -> tuple[int, int]:
        """Return what message `number` adds to the text of those before it, which asks for it."""
        begin = self._end_of(messages[:number], tools, text, asks=True)
        return begin, self._end_of(messages[: number + 1], tools, text)

    def _end_of(self, messages, tools, text: str, *, asks: bool = False) -> int:
        """Return where the first messages end in the text of all. Errors: RecordError."""
        beginning, _ = self.template.written(messages, tools, asks=asks)
        if not text.startswith(beginning):
            raise RecordError(
                f"is written otherwise in its first {len(messages)} messages than as a whole by "
                f"the chat template of {self.template.where}, so that answers are not told; mark "
                "them in it by {% generation %} (--chat-template=FILE), or give a record for each"
            )
        return len(beginning)


def _messages(found: Any, name: str) -> list[dict]:
    """Return messages without the gaps that tables have in them. Errors: RecordError."""
    if not isinstance(found, list) or not found:
        got = "is empty" if found == [] else f"is a {_kind(found)}"
        raise RecordError(f"has {name!r} which {got}; wanted a list of messages")
    return [_message(each, f"{name}[{number}]") for number, each in enumerate(found)]


def _message(found: Any, name: str) -> dict:
    if not isinstance(found, dict):
        raise RecordError(f"has {name} which is a {_kind(found)}; wanted an object with a role")
    message = {key: value for key, value in found.items() if value is not None}
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        got = "no role" if role is None else f"the role {role!r:.40}"
        raise RecordError(f"has {name} with {got}; wanted one of {', '.join(ROLES)}")
    if message.get("weight", 1) != 1:
        raise RecordError(f"has {name} with a weight; wanted none: all answers count alike")
    is_call = role == _ANSWER and "tool_calls" in message
    if not isinstance(content, str) and not (content is None and is_call):
        parts = "; parts such as images are not read" if isinstance(content, list) else ""
        got = "no content" if content is None else f"content of type {_kind(content)}"
        raise RecordError(f"has {name} with {got}; wanted text{parts}")
    if any(mark in (content or "") for mark in MARKS):
        raise RecordError(
            f"has {name} with U+FDD0 or U+FDD1, which are no characters; leave them out"
        )
    return message


def _tools(found: Any) -> list | None:
    """Return the tools that a conversation may call; tables have them as JSON."""
    try:
        found = json.loads(found) if isinstance(found, str) and found else found
    except ValueError as error:
        raise RecordError(f"has {_TOOLS!r} that are no JSON: {error}") from None
    if not found:
        return None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise RecordError(f"has {_TOOLS!r} of type {_kind(found)}; wanted a list of objects")
    return found


def _kind(value: Any) -> str:
    return type(value).__name__


def _checked(text: str) -> str:
    """Return a text that UTF-8 can hold. Errors: RecordError."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RecordError("has half of a surrogate pair, which no UTF-8 can hold") from None
    return text
