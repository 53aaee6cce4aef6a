"""Chat templates: conversations as text, as the tokenizer of a model writes them.

    messages, tools --template of the tokenizer (jinja2, in a sandbox)--> text
    {% generation %} answer {% endgeneration %}                           where answers are in it

A template is code of whoever made the model, so it sees what it is given and nothing else. The day
is not among it: the same conversations are the same text tomorrow.
"""

import importlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...errors import ConfigurationError
from ...files.reading import parsed_json
from ..tokenizer import FILES, TEMPLATE
from .readers import RecordError

MARKS = ("\ufdd0", "\ufdd1")  # around answers as they are written: no text has them
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ChatTemplate:
    """How conversations are written.

    source, with_tools   of the template, and of the one for conversations with tools
    special              (name, text) of the tokens that it may write
    where                it comes from, for messages
    """

    source: str
    with_tools: str
    special: tuple[tuple[str, str], ...]
    where: str

    @classmethod
    def of(cls, files: dict[str, bytes], where: str) -> "ChatTemplate":
        """Return that among the files of a tokenizer.

        Errors: ConfigurationError if there is none, or jinja2 is missing or does not read it.
        """
        settings = parsed_json(files.get(FILES[1], b"{}"), f"{FILES[1]} beside {where}")
        found = _sources(files, settings, where)
        source = found.get("default")
        if not isinstance(source, str):
            raise ConfigurationError(
                f"{where} has no chat template beside it; give --chat-template=FILE, or a tokenizer"
                f" with {TEMPLATE}, or chat_template in {FILES[1]}"
            )
        special = [(name, _text(settings.get(name))) for name in _SPECIAL]
        known = tuple((name, text) for name, text in special if text)
        with_tools = found.get("tool_use") or source
        if not isinstance(with_tools, str):
            raise ConfigurationError(
                f"{FILES[1]} beside {where} has a chat template tool_use of type "
                f"{type(with_tools).__name__}; wanted text"
            )
        template = cls(source, with_tools, known, where)
        for each in (template.source, template.with_tools):
            _compiled(each, where)
        return template

    @property
    def marks_answers(self) -> bool:
        """Whether the template itself says what answers are."""
        return "endgeneration" in self.source

    def written(
        self, messages: list, tools: list | None, *, asks: bool = False
    ) -> tuple[str, Spans]:
        """Return the text of a conversation, and where the answers are that the template marks.

        asks   the beginning of the next answer stands at the end
        Errors: RecordError with what the template raises.
        """
        template = _compiled(self.with_tools if tools else self.source, self.where)
        given = {"messages": messages, "tools": tools, "add_generation_prompt": asks}
        try:
            return _without_marks(template.render(**dict(self.special), **given))
        except Exception as error:  # the template is code, and may raise anything
            kind = "" if isinstance(error, _Refused) else f"{type(error).__name__}: "
            raise RecordError(
                f"cannot be written by the chat template of {self.where}: {kind}{error}"[:400]
            ) from None


def _sources(files: dict[str, bytes], settings: dict, where: str) -> dict[str, Any]:
    """Return {name: source}: of the file of its own, or of the settings of the tokenizer."""
    if TEMPLATE in files:
        return {"default": _decoded(files[TEMPLATE], where)}
    found = settings.get("chat_template")
    if isinstance(found, list):  # of {"name": ..., "template": ...}
        named = [each for each in found if isinstance(each, dict)]
        return {str(each.get("name")): each.get("template") for each in named}
    return {"default": found}


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the chat template of {where} is not valid UTF-8 at byte {error.start}"
        ) from None


def _text(token) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _without_marks(text: str) -> tuple[str, Spans]:
    """Return the text without marks of answers, and what they stood around. Errors: _Refused."""
    before, *rest = text.split(MARKS[0])
    parts, at = [before], len(before)
    spans: list[tuple[int, int]] = []
    if MARKS[1] in before or any(each.count(MARKS[1]) != 1 for each in rest):
        raise _Refused("U+FDD0 or U+FDD1 stands in it, or {% generation %} within another")
    for each in rest:
        answer, _, behind = each.partition(MARKS[1])
        spans += [(at, at + len(answer))] * bool(answer)
        parts += [answer, behind]
        at += len(answer) + len(behind)
    return "".join(parts), tuple(spans)


@lru_cache(maxsize=16)
def _compiled(source: str, where: str) -> Any:
    """Return the template. Errors: ConfigurationError."""
    jinja = _library(where)
    settings = {"trim_blocks": True, "lstrip_blocks": True}  # as transformers sets them
    loops = "jinja2.ext.loopcontrols"
    sandbox = jinja.sandbox.ImmutableSandboxedEnvironment
    environment = sandbox(extensions=[_generation(jinja), loops], **settings)
    environment.filters["tojson"] = _as_json
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except jinja.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise ConfigurationError(
            f"the chat template of {where} cannot be read: {error} (line {line})"
        ) from None
    except RecursionError:
        raise ConfigurationError(
            f"the chat template of {where} cannot be read: it is nested too deeply"
        ) from None


def _library(where: str) -> Any:
    try:
        importlib.import_module("jinja2.sandbox")
        importlib.import_module("jinja2.ext")
        return importlib.import_module("jinja2")
    except ImportError:
        raise ConfigurationError(
            f"the chat template of {where} needs the library jinja2: pip install 'shardkit[chat]'"
        ) from None


def _as_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """Return JSON as it is, where jinja2 would write it for HTML."""
    how = {"ensure_ascii": ensure_ascii, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, indent=indent, **how)


class _Refused(Exception):
    """What a template says against a conversation."""


def _refuse(message):
    raise _Refused(message)


@lru_cache(maxsize=1)
def _generation(jinja) -> type:
    """Return the extension for {% generation %}: its block is written between marks."""

    class Generation(jinja.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            call = self.call_method("_marked")
            return jinja.nodes.CallBlock(call, [], [], body).set_lineno(line)

        def _marked(self, caller):
            return MARKS[0] + caller() + MARKS[1]

    return Generation
