"""Parts: the blocks that are done, each a file whose name says what it is.

    tokens.h5.parts/
      <key>-<documents>-<tokens>-<checksum>.part   ends of documents, int64, then tokens, then, of
                                                   conversations, a byte each: is it an answer
      claims-<attempt>/00000012                    empty: a rank of this attempt has taken block 12
      claims-<attempt>/failed                      empty: a rank has met an error
      <key>.unpacked                               what a compressed input holds (unpacking.py)
      tokenizer-<key>.json                         a vocabulary that was trained for this output
      unfinished-<attempt>.h5                      the token file while it is put together
      ledger/                                      what each rank is at (comm/watch/ledger.py)
      owner.json                                   the job that works there (files/ownership.py)

The folder may be a link to one on another disk. Nothing else in it is touched, and it then stays.

A part appears by a rename when it is on disk whole. Its key depends on the tokenizer and on the
bytes that were read (name, size and time of the file), so a job that is started again keeps every
part that still holds, whatever was killed and however many ranks there are.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy

from ...checkpoint.format.files import checksum, make_folder
from ...comm.watch.folder import LEDGER_NAMES
from ...errors import CorpusError
from ...files.ownership import OWNER_NAMES, Ownership
from ...files.reading import read_bytes
from ...files.removing import FILE, TEMPORARY, clear_folder, remove_file, remove_folder
from ...files.writing import write_whole

SYNC_SECONDS = 3600.0  # that a disk may take for what it was given
_SUFFIX = ".part"
_PART = re.compile(r"[0-9a-f]{32}-\d{1,15}-\d{1,15}-[0-9a-f]{16}\.part", re.ASCII)
_END_BYTES = 8  # of a position in a part
_CLAIMS = {r"\d{8,}|failed": FILE}
_UNFINISHED = {  # of an attempt, which no other one can use
    "claims-[0-9a-f]{32}": _CLAIMS,
    r"unfinished-[0-9a-f]{32}\.h5": FILE,
}
_NAMES = {
    **_UNFINISHED,
    _PART.pattern: FILE,
    r"[0-9a-f]{32}\.unpacked": FILE,
    r"tokenizer-[0-9a-f]{32}\.json": FILE,
    "ledger": LEDGER_NAMES,
    OWNER_NAMES: FILE,
}
_ADVICE = "wait until it is done, end it, or choose another --output"


@dataclass(frozen=True)
class TokenPart:
    """One block that is done.

    num_documents   documents that end in the block
    num_tokens      tokens of the block
    """

    path: Path
    key: str
    num_documents: int
    num_tokens: int
    checksum: str

    @classmethod
    def named(cls, path: Path) -> "TokenPart":
        """Return the part that a file name describes."""
        key, documents, tokens, digest = path.name.removesuffix(_SUFFIX).split("-")
        return cls(path, key, int(documents), int(tokens), digest)

    def read(self, dtype, *, has_answers: bool) -> tuple[numpy.ndarray, ...]:
        """Return (ends of documents [d] int64, tokens [n] of this dtype, answers [n] uint8 or [0]).

        Ends count from the first token of the part.
        Errors: CorpusError if the file is not what its name says; OSError.
        """
        token_bytes = numpy.dtype(dtype).itemsize * self.num_tokens
        answers_at = _END_BYTES * self.num_documents + token_bytes
        wanted = answers_at + has_answers * self.num_tokens
        content = read_bytes(self.path, wanted, error=CorpusError)
        if len(content) != wanted or checksum(content) != self.checksum:
            raise CorpusError(
                f"{self.path} is damaged; start again, which does this part once more"
            )
        ends = numpy.frombuffer(content, numpy.int64, self.num_documents)
        at = _END_BYTES * self.num_documents
        tokens = numpy.frombuffer(content, dtype, self.num_tokens, at)
        return ends, tokens, numpy.frombuffer(content, numpy.uint8, offset=answers_at)


class PartsFolder:
    """The folder beside the output, for one attempt of a job.

    attempt   name of the attempt, the same on all ranks
    """

    def __init__(self, output: Path, attempt: str):
        self.path = output.with_name(output.name + ".parts")
        self.unfinished = self.path / f"unfinished-{attempt}.h5"
        self.ledger = self.path / "ledger"
        self._claims = self.path / f"claims-{attempt}"

    def open(self, say: Callable[[str], None] = lambda line: None) -> Ownership:
        """Make the folder, and remove what other attempts left unfinished. For one rank.

        returns   what keeps other jobs away, until it is released
        say       called before a wait for a sign of life of another job
        Errors: ConfigurationError if another job works there.
        """
        make_folder(self.path)
        owned = Ownership.take(self.path, _ADVICE, say=say)
        try:
            others = {} if self.path.is_symlink() else {TEMPORARY: FILE}
            clear_folder(self.path, {**_UNFINISHED, **others})
            self._claims.mkdir()
        except BaseException:
            owned.release()
            raise
        return owned

    def parts(self) -> dict[str, TokenPart]:
        """Return the parts that are there, by key."""
        paths = [path for path in self.path.iterdir() if _PART.fullmatch(path.name)]
        found = [TokenPart.named(path) for path in paths]
        return {part.key: part for part in found}

    def write(self, key: str, ends: numpy.ndarray, tokens: numpy.ndarray, *answers) -> TokenPart:
        """Write a part and return it; it is on disk then. Errors: OSError."""
        arrays = ends.astype(numpy.int64), tokens, *answers
        content = b"".join(array.tobytes() for array in arrays)
        path = self.path / f"{key}-{len(ends)}-{len(tokens)}-{checksum(content)}{_SUFFIX}"
        write_whole(path, content, durable=True)
        return TokenPart.named(path)

    # ---- who does what ---------------------------------------------------------------------------

    def claim(self, number: int) -> bool:
        """Return True if this rank, and no other of the attempt, shall do the block."""
        try:
            os.close(os.open(self._claims / f"{number:08d}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def note_failure(self) -> None:
        """Tell the other ranks to take no more blocks."""
        try:
            os.close(os.open(self._claims / "failed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass

    @property
    def has_failed(self) -> bool:
        """Whether a rank has met an error."""
        return (self._claims / "failed").exists()

    def drop(self, part: TokenPart) -> None:
        """Remove a part that is damaged."""
        remove_file(part.path)

    def remove(self) -> list[str]:
        """Remove the folder, since the output is there; return what others have put there, which
        stays. A folder behind a link stays too.
        """
        if self.path.is_symlink():
            return clear_folder(self.path, _NAMES)
        return remove_folder(self.path, _NAMES)
