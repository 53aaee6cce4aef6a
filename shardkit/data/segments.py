"""Segments: tokens that lie one behind the other in a file, read where they are.

    file     | header | tokens ....................... |
                      at ^      count of this dtype

Nothing is mapped: pages of a map that were once touched stay in the memory of a process, and a file
may be larger than that. A window is one read of the bytes that it needs. Small files are read whole
and kept, up to 32 MiB of them: opening thousands of files takes longer than reading them.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy

from ..errors import CorpusError
from ..files.reading import open_regular
from .contents import Stamp, content_of, settled_stamp

_MOST_OPEN_FILES = 128  # of the 1024 that a process usually may open
_KEPT_FILE_BYTES = 1 << 19  # files of text up to here are kept in memory,
_KEPT_BYTES = 32 << 20  # as long as all of them have no more than this


@dataclass(frozen=True)
class Segment:
    """Tokens in a file.

    at         byte of the file where they begin
    mark       hash of the file and those that belong to it (contents.py)
    documents  [d + 1] int64, where each document begins, in tokens of the segment, and the number
               of tokens; None: it is one document
    answers    byte of the file where it says which tokens are answers, one byte each; None: it does
               not
    stamps     of the files of the mark, as they were read for it
    """

    path: str
    dtype: str
    at: int
    count: int
    mark: str
    documents: numpy.ndarray | None = field(default=None, compare=False, repr=False)
    answers: int | None = field(default=None, compare=False, repr=False)
    stamps: tuple[Stamp | None, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def marked(cls, dtype: numpy.dtype | str, at: int, count: int, *files) -> "Segment":
        """Return tokens in the first of these files, with their mark. Errors: as content_of."""
        mark = content_of(*files)
        stamps = tuple(map(settled_stamp, files))
        return cls(str(files[0]), numpy.dtype(dtype).str, at, count, mark, stamps=stamps)

    @property
    def num_bytes(self) -> int:
        """How many bytes the tokens have."""
        return self.count * numpy.dtype(self.dtype).itemsize

    @property
    def largest(self) -> int:
        """The largest token number that the dtype can hold."""
        return int(numpy.iinfo(self.dtype).max)


class OpenFiles:
    """Reads tokens of segments. The files that were read last stay open; small ones are kept."""

    def __init__(self):
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._kept: OrderedDict[str, numpy.ndarray] = OrderedDict()
        self._kept_bytes = 0

    def read(self, segment: Segment, first: int, count: int) -> numpy.ndarray:
        """Return tokens [first, first + count) of the segment: [count] of its dtype, read-only.

        Errors: CorpusError if the file is no longer as long as it was, OSError.
        """
        whole = self._kept.get(segment.path)
        if whole is None:
            if segment.num_bytes > _KEPT_FILE_BYTES:
                return self._from_disk(segment, first, count)
            whole = self._keep(segment)
        return whole[first : first + count]

    def _keep(self, segment: Segment) -> numpy.ndarray:
        """Read a small file whole, in place of those that were read first."""
        whole = self._from_disk(segment, 0, segment.count)
        self._kept[segment.path] = whole
        self._kept_bytes += whole.nbytes
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
        return whole

    def _from_disk(self, segment: Segment, first: int, count: int) -> numpy.ndarray:
        tokens = numpy.empty(count, segment.dtype)
        view = memoryview(tokens).cast("B")
        at = segment.at + first * tokens.itemsize
        descriptor = self._descriptor(segment.path)
        done = 0
        while done < len(view):
            num_bytes = os.preadv(descriptor, [view[done:]], at + done)
            if num_bytes == 0:
                raise CorpusError(
                    f"{segment.path} became shorter while it was trained on: it has no byte "
                    f"{at + done:,}; restore it, and resume"
                )
            done += num_bytes
        return tokens

    def _descriptor(self, path: str) -> int:
        if path in self._descriptors:
            self._descriptors.move_to_end(path)
            return self._descriptors[path]
        if len(self._descriptors) == _MOST_OPEN_FILES:
            os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors[path] = open_regular(path, error=CorpusError)
        return self._descriptors[path]

    def __del__(self, close=os.close):  # at the end of a program modules are empty
        for descriptor in self._descriptors.values():
            close(descriptor)
