"""Pieces: named boxes with an address in their owner's buffer. A checkpoint writes and reads them
one at a time.
"""

from dataclasses import dataclass

from .box import Box


@dataclass(frozen=True, slots=True)
class Piece:
    """The elements `box` of tensor `name`, kept at [start, stop) of its owner's buffer.

    start, stop    in elements from the beginning of the owner's span;
                   `buffer[start:stop].reshape(box.shape)` is the box
    """

    name: str
    box: Box
    start: int
    stop: int
    global_shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name}{self.box} of {self.global_shape} at [{self.start}, {self.stop})"
