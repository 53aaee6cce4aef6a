"""Prepare a token file, as a job of any number of ranks.

    inputs --rank 0--> blocks --every rank, one after the other--> parts --every rank--> token file
                       in document order                           tokens.h5.parts/

Ranks take blocks as they get free, so slow ones keep nobody waiting. Whoever is killed leaves whole
parts behind, and the next job does the others. The file is the same whatever happened.
"""

import hashlib
import json
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from ...checkpoint.format.files import sync
from ...comm.alone_at_work import ledger_in, native_work, wait_until
from ...comm.backend import CommunicationBackend
from ...comm.failure.agreement import by_first, collectively
from ...comm.same import alike, facts_of, versions
from ...errors import ConfigurationError, CorpusError
from ...files.ownership import Ownership
from ...files.reading import read_bytes, read_json, wanted
from ...files.removing import few
from ...files.writing import move_file, write_whole
from ..token_file import open_token_file
from ..tokenizer import MAIN_FILE, TEMPLATE, Tokenizer, open_tokenizer, tokenizer_of
from .assemble import Totals, assemble
from .chat import MESSAGES, Conversations
from .inputs import Block, Input, check_field, cut_into_blocks, find_inputs, passing
from .parts import PartsFolder
from .readers import Documents
from .template import ChatTemplate
from .vocabulary import train_vocabulary
from .work import Encoding, PreparationProgress, Readers, told

Files: TypeAlias = dict[str, bytes]  # of a tokenizer, by name
_MOST_TEMPLATE_BYTES = 1 << 22
ALONE_SECONDS = 24 * 3600.0  # that native code may take for the vocabulary of a large corpus


@dataclass(frozen=True)
class Preparation:
    """What shall be prepared.

    inputs            paths of files and folders
    output            path of the token file, which must not exist yet
    tokenizer         path of a tokenizer.json or its folder, or "bytes"; None: train one
    train_vocabulary  number of tokens of the one that is trained and stored beside the output
    field             of JSON lines, or column of Parquet; None: "text", or "messages"
    is_chat           records are conversations, of which the answers are noted
    chat_template     path of a template, in place of that of the tokenizer
    reuses            the output may be there, if it was made from the same texts and settings
    """

    inputs: tuple[str, ...]
    output: Path
    tokenizer: str | None = None
    train_vocabulary: int | None = None
    field: str | None = None
    reuses: bool = False
    is_chat: bool = False
    chat_template: str | None = None


def prepare_tokens(
    backend: CommunicationBackend,
    preparation: Preparation,
    *,
    say: Callable[[str], None] = lambda line: None,
    report: Callable[[PreparationProgress], None] = lambda progress: None,
) -> Totals:
    """Make the token file; return what it holds. Collective over the backend.

    say, report   called on rank 0 with lines, and with the progress after each of its blocks
    Errors, on all ranks: ConfigurationError, CorpusError (the first in document order, with file
    and line), OSError. Parts that are done stay, and nothing is at the output's name before it is
    whole.
    The timeout of the backend limits how long a rank may get nowhere: with a block, say.
    """
    with alike(backend, "start all ranks with the same arguments, and the same software") as facts:
        facts |= facts_of(vars(replace(preparation, output=preparation.output.resolve())))
        facts |= versions("tokenizers", "pyarrow", "jinja2")
    owned: list[Ownership] = []  # the folder of parts, on rank 0
    try:
        return _prepare(backend, preparation, owned, say, report)
    finally:
        for each in owned:
            each.release()


def _prepare(backend, preparation: Preparation, owned: list[Ownership], say, report) -> Totals:
    inputs, documents, files, made_from = _found(backend, preparation)
    there = _there(backend, preparation, files, made_from, say)
    if there is not None:
        return there
    blocks, attempt = _plan(backend, preparation, inputs, documents, owned, say)
    folder = PartsFolder(preparation.output, attempt)
    with ledger_in(backend, folder.ledger):
        if files is None:
            files = _trained(backend, folder, preparation, blocks, documents, say)
        with collectively(backend):
            tokenizer = tokenizer_of(files)
        work = Encoding(backend, folder, tokenizer, blocks, documents)
        num_kept = work.check_parts()
        if backend.rank == 0 and num_kept:
            say(f"{num_kept} of {len(blocks)} parts were done before")
        parts = work.encode(report)
        given = folder.unfinished, parts, tokenizer, made_from
        totals = assemble(backend, *given, has_answers=documents.has_answers)
    with collectively(backend):
        if backend.rank == 0:
            for one in inputs:
                one.check_untouched()
            _publish(folder, preparation, tokenizer, say)
    return totals


def _found(backend, preparation: Preparation) -> tuple[list[Input], Documents, Files | None, str]:
    """Return (inputs, documents, files of the tokenizer or None, hash of the texts). Collective."""
    inputs, documents, files = by_first(backend, lambda: _look(preparation, backend.work))
    inputs = _shared(backend, inputs, lambda one: one.marked(backend.work))
    about = [documents.key, *((one.kind, one.mark) for one in inputs)]
    return inputs, documents, files, hashlib.sha256(json.dumps(about).encode()).hexdigest()


def _there(backend, preparation: Preparation, files, made_from: str, say) -> Totals | None:
    """Return what the output holds, if it is there and may be used again. Collective."""
    return by_first(backend, lambda: _reused(preparation, files, made_from, say))


def _reused(preparation: Preparation, files, made_from: str, say) -> Totals | None:
    """Return what the output holds, None without one. On one rank.

    Errors: ConfigurationError if it was made from other texts.
    """
    output = preparation.output
    if not output.exists():
        return None
    file = open_token_file(output)
    if files is None:
        beside = output.with_name(MAIN_FILE)
        is_size = file.vocabulary_size == preparation.train_vocabulary
        is_same = is_size and beside.exists()
        files = open_tokenizer(str(beside)).files if is_same else {}
    tokenizer = tokenizer_of(files)
    is_same = file.tokenizer_files == files and file.tokenizer_hash == tokenizer.hash
    if not is_same or file.made_from != made_from:
        raise ConfigurationError(
            f"{output} was not made from these texts, this tokenizer and this field; choose "
            "another --output, or remove it"
        )
    say(f"{output} is there, made from the same texts, tokenizer and field")
    return Totals(len(file.tokens), len(file.documents) - 1)


def _plan(
    backend, preparation: Preparation, inputs: list[Input], documents: Documents, owned, say
) -> tuple[list[Block], str]:
    """Return (blocks, name of this attempt). Collective."""
    attempt = None
    with collectively(backend):
        if backend.rank == 0:
            attempt = uuid.uuid4().hex
            owned.append(PartsFolder(preparation.output, attempt).open(say))
    attempt = backend.broadcast_object(attempt, 0)
    folder = PartsFolder(preparation.output, attempt).path
    inputs = _shared(backend, inputs, lambda one: one.unpacked(folder, backend.work))
    return by_first(backend, lambda: cut_into_blocks(inputs, documents, backend.work)), attempt


def _shared(backend, inputs: list[Input], change: Callable[[Input], Input]) -> list[Input]:
    """Return the inputs as a function changes them, each on some rank. Collective."""
    with collectively(backend):
        mine = range(backend.rank, len(inputs), backend.world_size)
        made = {number: change(inputs[number]) for number in mine}
    everyones: dict[int, Input] = {}
    for of_rank in backend.all_gather_object(made):
        everyones |= of_rank
    return [everyones[number] for number in range(len(inputs))]


def _look(preparation: Preparation, work) -> tuple[list[Input], Documents, Files | None]:
    output = preparation.output
    trains = preparation.train_vocabulary is not None
    if trains == (preparation.tokenizer is not None):
        raise ConfigurationError("wanted a tokenizer, or the size of a vocabulary to train")
    if not (preparation.reuses and output.exists()):
        _check_free(output, output.with_name(MAIN_FILE) if trains else output)
    if not output.parent.is_dir():
        raise ConfigurationError(f"--output={output}: there is no folder {output.parent}")
    files = None if trains else open_tokenizer(preparation.tokenizer).files
    inputs = find_inputs(list(preparation.inputs), work)
    if preparation.chat_template is not None and not preparation.is_chat:
        raise ConfigurationError("--chat-template writes conversations; give --chat with it")
    if not preparation.is_chat:
        return inputs, check_field(inputs, preparation.field), files
    files = {**(files or {}), **_template_files(preparation)}
    return inputs, _chat(preparation, inputs, files), files


def _template_files(preparation: Preparation) -> dict[str, bytes]:
    """Return {name: content} of the template that is given, or beside the tokenizer; {}: none."""
    given = preparation.chat_template
    path = Path(str(preparation.tokenizer))
    beside = (path if path.is_dir() else path.parent) / TEMPLATE
    if given is None and not beside.is_file():
        return {}
    if given is not None and not Path(given).is_file():
        raise ConfigurationError(f"--chat-template={given}: no such file; wanted a template")
    return {TEMPLATE: read_bytes(Path(given or beside), _MOST_TEMPLATE_BYTES, error=CorpusError)}


def _chat(preparation: Preparation, inputs: list[Input], files: dict[str, bytes]) -> Conversations:
    """Return how conversations are written. Errors: ConfigurationError."""
    texts = [one.path for one in inputs if one.kind == "text"]
    if texts or MAIN_FILE not in files:
        got = (
            f"{texts[0]} is text"
            if texts
            else "a tokenizer of bytes, or a new one, has no template"
        )
        raise ConfigurationError(
            f"--chat: {got}; wanted JSON lines or Parquet, and a --tokenizer with a chat template"
        )
    where = str(preparation.chat_template or preparation.tokenizer)
    tokenizer = tokenizer_of(files)
    end = tokenizer.end_of_text
    return Conversations(
        ChatTemplate.of(files, where),
        "" if end is None else tokenizer.decode([end]),
        preparation.field or MESSAGES,
    )


def _check_free(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise ConfigurationError(
                f"{path} exists already; remove it, or choose another --output"
            )


def _publish(folder: PartsFolder, preparation: Preparation, tokenizer: Tokenizer, say) -> None:
    """Give the token file its name, and remove the parts."""
    output = preparation.output
    if preparation.train_vocabulary is not None:
        for name, content in tokenizer.files.items():
            write_whole(output.with_name(name), content, durable=True)
    move_file(folder.unfinished, output)
    sync(output.parent)
    left = folder.remove()
    if left:
        say(f"{folder.path} stays, for what is in it: {few(left)}")


# ---- a vocabulary --------------------------------------------------------------------------------


def _trained(backend, folder: PartsFolder, preparation, blocks, documents, say) -> dict[str, bytes]:
    """Return the files of a tokenizer that rank 0 trains, or has trained in an earlier attempt.

    Collective. The others sleep meanwhile: a rank that waits in MPI would take its core.
    """
    size = preparation.train_vocabulary
    about = [size, *(block.key("", None, documents.key) for block in blocks)]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
    path = folder.path / f"tokenizer-{key}.json"
    with collectively(backend):
        if backend.rank == 0 and not path.exists():
            num_bytes = sum(block.span.num_bytes for block in blocks)
            say(f"training a vocabulary of {size:,} tokens on {num_bytes / 1e6:,.1f} MB")
            with told(folder):
                _train(path, blocks, documents, size, backend)
        wait_until(backend, lambda: path.exists() or folder.has_failed, 0)
    files = None
    if backend.rank == 0:
        texts = read_json(path, 1 << 27, error=CorpusError)
        files = {
            name: wanted(text, str, path, name, error=CorpusError).encode()
            for name, text in texts.items()
        }
    return backend.broadcast_object(files, 0)


def _train(
    path: Path, blocks: list[Block], documents: Documents, size: int, backend: CommunicationBackend
) -> None:
    readers = Readers(documents)
    with ExitStack() as merging:

        def all_texts():
            for block in blocks:
                yield from (each.text for each in passing(readers.pieces(block), backend.work))
            merging.enter_context(native_work(backend, ALONE_SECONDS))

        files = train_vocabulary(all_texts(), size)
    stored = {name: content.decode() for name, content in files.items()}
    write_whole(path, json.dumps(stored).encode())
