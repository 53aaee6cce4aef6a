"""Parts: the blocks that are done, each a file whose name says what it is.

    tokens.h5.parts/
      <key>-<documents>-<tokens>-<checksum>.part   ends of documents, int64, then tokens
      claims-<attempt>/00000012                    empty: a rank of this attempt has taken block 12
      claims-<attempt>/failed                      empty: a rank has met an error
      <key>.unpacked                               what a compressed input holds (unpacking.py)
      tokenizer-<key>.json                         a vocabulary that was trained for this output
      tokens.h5                                    the token file while it is put together

A part appears by a rename when it is on disk whole. Its key depends on the tokenizer and on the
bytes that were read (name, size and time of the file), so a job that is started again keeps every
part that still holds, whatever was killed and however many ranks there are.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy

from ...checkpoint.format.files import checksum, make_folder, sync
from ...errors import CorpusError
from ...files.reading import read_bytes

_SUFFIX = ".part"
_PART = re.compile(r"\w+-\d{1,15}-\d{1,15}-\w+\.part", re.ASCII)
_END_BYTES = 8  # of a position in a part


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

    def read(self, dtype) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return (ends of documents [d] int64, tokens [n] of this dtype).

        Ends count from the first token of the part.
        Errors: CorpusError if the file is not what its name says; OSError.
        """
        wanted = _END_BYTES * self.num_documents + numpy.dtype(dtype).itemsize * self.num_tokens
        content = read_bytes(self.path, wanted, error=CorpusError)
        if len(content) != wanted or checksum(content) != self.checksum:
            raise CorpusError(
                f"{self.path} is damaged; start again, which does this part once more"
            )
        ends = numpy.frombuffer(content, numpy.int64, self.num_documents)
        return ends, numpy.frombuffer(content, dtype, offset=_END_BYTES * self.num_documents)


class PartsFolder:
    """The folder beside the output, for one attempt of a job.

    attempt   name of the attempt, the same on all ranks
    """

    def __init__(self, output: Path, attempt: str):
        self.path = output.with_name(output.name + ".parts")
        self.unfinished = self.path / output.name
        self._claims = self.path / f"claims-{attempt}"

    def open(self) -> None:
        """Make the folder, and remove what other attempts left unfinished. For one rank."""
        make_folder(self.path)
        for old in [*self.path.glob("claims-*"), *self.path.glob("*.new"), self.unfinished]:
            _remove(old)
        self._claims.mkdir()

    def parts(self) -> dict[str, TokenPart]:
        """Return the parts that are there, by key."""
        found = [
            TokenPart.named(path)
            for path in self.path.glob(f"*{_SUFFIX}")
            if _PART.fullmatch(path.name)
        ]
        return {part.key: part for part in found}

    def write(self, key: str, ends: numpy.ndarray, tokens: numpy.ndarray) -> TokenPart:
        """Write a part and return it; it is on disk then. Errors: OSError."""
        content = ends.astype(numpy.int64).tobytes() + tokens.tobytes()
        name = f"{key}-{len(ends)}-{len(tokens)}-{checksum(content)}{_SUFFIX}"
        new = self.path / f"{name}.new"
        new.write_bytes(content)
        sync(new)
        return TokenPart.named(new.rename(self.path / name))

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
        (self._claims / "failed").touch()

    @property
    def has_failed(self) -> bool:
        """Whether a rank has met an error."""
        return (self._claims / "failed").exists()

    def remove(self) -> None:
        """Remove the folder: the output is there."""
        _remove(self.path)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; missing ones are gone already."""
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
