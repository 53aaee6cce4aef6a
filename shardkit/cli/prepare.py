"""`shardkit prepare`."""

import sys
import time
from functools import partial
from pathlib import Path

from ..comm.seats import all_seats, share_cores
from ..data.prepare.chat import MESSAGES
from ..data.prepare.inputs import FIELD
from ..data.prepare.job import Preparation, prepare_tokens
from ..data.prepare.work import PreparationProgress
from ..environment import share_tokenizer_threads
from ..files.notes import Screen
from ..files.paths import spelled_out
from ..train.log import duration_text
from .arguments import count, local_path, option, seconds
from .job import job, mpi_backend

_TIMEOUT_SECONDS = 120.0  # less than for a step: what is done stays, and work is in small pieces
_REPORT_SECONDS = 10.0  # between two lines where there is no terminal
_PREPARE = """make a token file of text, JSON lines or Parquet

Make a token file, which `shardkit train --data.path=FILE` reads in place: mpiexec -n 4
shardkit prepare corpus/ --tokenizer=tokenizer.json --output=tokens.h5. The file is the same
for any number of ranks. A job that was killed is started again with the same command, and
keeps what is done (in FILE.parts). With --chat records are conversations, for
`shardkit train --task=chat`."""


def add_commands(add_command) -> None:
    """Add the parser of the command."""
    prepare = add_command("prepare", _prepare, _PREPARE, allow_abbrev=False)
    add = partial(option, prepare)
    add(
        "inputs INPUT",
        "files, or folders of files: text (one document each), JSON lines (.jsonl, .ndjson, "
        ".json; a document in each line), Parquet (.parquet; a document in each row)",
        nargs="+",
        type=local_path,
    )
    how = prepare.add_mutually_exclusive_group(required=True)
    option(how, "--tokenizer PATH", "a tokenizer.json, a folder that holds one, or the word bytes")
    option(
        how,
        "--train-vocabulary N",
        "train a byte-level BPE of N tokens on the inputs first; it is written beside the "
        "output as tokenizer.json",
        type=count,
    )
    add("--output FILE", "token file to write", required=True)
    add(
        "--reuse",
        "leave the output as it is where it is there already, made from the same texts, "
        "tokenizer and field; one that was made from others is refused",
    )
    add(
        "--field NAME",
        "field of JSON lines, or column of Parquet, that holds the text, or the messages; "
        f"default: {FIELD}, with --chat {MESSAGES}",
        type=spelled_out,
    )
    add(
        "--chat",
        "records are conversations: messages, or prompt and completion; they are written by the "
        "chat template of the tokenizer, and what is an answer is noted",
        action="store_true",
    )
    add(
        "--chat-template FILE",
        "a chat template (jinja), in place of that of the tokenizer",
        type=local_path,
    )
    add(
        "--threads N",
        "threads of each rank; default: its share of the cores, or RAYON_NUM_THREADS",
        type=count,
    )
    add(
        "--timeout SECONDS",
        "longest time in which a rank gets nowhere, with a row group of Parquet, say; then "
        f"the job ends with a report, and keeps what is done; default: {_TIMEOUT_SECONDS:g}",
        type=seconds,
        default=_TIMEOUT_SECONDS,
    )


def _prepare(known, overrides) -> int:
    preparation = Preparation(
        tuple(known.inputs),
        Path(known.output),
        known.tokenizer,
        known.train_vocabulary,
        known.field,
        known.reuse,
        known.chat,
        known.chat_template,
    )
    backend = mpi_backend()
    with job(backend):
        backend.timeout = known.timeout
        share_tokenizer_threads(known.threads, _share_of_cores(backend))
        line = _Line()
        began = time.monotonic()
        totals = prepare_tokens(backend, preparation, say=line.end, report=line.show)
        if backend.rank == 0:
            line.end(
                f"{known.output}: {totals.num_tokens:,} tokens in {totals.num_documents:,} "
                f"documents, in {duration_text(time.monotonic() - began)}"
            )
        line.close()
    return 0


def _share_of_cores(backend) -> int:
    """Return how many threads each rank of this host may run. Collective."""
    seats = all_seats(backend, 1)
    own = seats[backend.rank]
    return share_cores(own, [seat for seat in seats if seat.host == own.host])


class _Line:
    """One line of progress: written over on a terminal, elsewhere written now and then."""

    def __init__(self):
        self._screen = Screen(sys.stdout)
        self._is_terminal = self._screen.isatty()
        self._width = 0
        self._shown = time.monotonic()

    def show(self, progress: PreparationProgress) -> None:
        """Show how far the job is."""
        text = (
            f"{progress.share:.1%}  {progress.tokens_per_second:,.0f} tokens/s  "
            f"{duration_text(progress.seconds_left)} left"
        )
        if self._is_terminal:
            self._screen.write(f"\r{text:<{self._width}}")
            self._width = len(text)
        elif time.monotonic() - self._shown >= _REPORT_SECONDS:
            self._screen.write(f"{text}\n")
            self._shown = time.monotonic()

    def end(self, text: str) -> None:
        """Write a line that stays."""
        self._screen.write(f"\r{text:<{self._width}}\n" if self._width else f"{text}\n")
        self._width = 0

    def close(self) -> None:
        """Write what standard output has not taken yet, or say what is lost."""
        self._screen.close()
