"""The headers of objects in an HDF5 file, read as bytes: what the library must not be asked for.

    object header  | message | message | continuation --> | message | ...
                     layout of a virtual dataset, text of an attribute --> global heap, number

The library trusts global heaps: in one that is damaged it goes in circles. And it trusts what they
say of virtual datasets: opening one that is damaged ends the process. So heaps are looked at before
texts are asked for, and virtual datasets are never opened: hdf5_virtual.py reads their mappings.
Source: HDF5 File Format Specification 3.0, IV.A.1 and III.E.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

_SPACE, _TYPE, _LAYOUT = 0x01, 0x03, 0x08  # types of messages
_ATTRIBUTE, _CONTINUATION, _ATTRIBUTES = 0x0C, 0x10, 0x15
_NOWHERE = b"\xff" * 8  # an address
_VIRTUAL = 3  # class of a layout
_MOST_BYTES = 1 << 24  # of all parts of a header, and of a heap
_MOST_PARTS = 1 << 10
_FLAG_SHARED = 2  # of a message
_FLAG_TIMES, _FLAG_PHASES, _FLAG_ORDERED = 0x20, 0x10, 0x04


class VirtualMessages(NamedTuple):
    """What the header of a virtual dataset says: its dataspace, its datatype, its mapping."""

    space: bytes
    kind: bytes
    mapping: bytes


class Headers:
    """The headers in a file, by the byte at which they begin.

    descriptor  of the file, of which offsets and lengths have 8 bytes
    base        byte of the file that HDF5 counts from
    Errors of all methods: ValueError on what is damaged.
    """

    def __init__(self, descriptor: int, base: int):
        self._descriptor, self._base = descriptor, base

    def is_virtual(self, address: int) -> bool:
        """Return True for a virtual dataset, whose values are elsewhere."""
        layouts = [content for kind, _, content in self._messages(address) if kind == _LAYOUT]
        return any(content[1:2] == bytes([_VIRTUAL]) and content[0] > 2 for content in layouts)

    def virtual(self, address: int) -> VirtualMessages:
        """Return what the header of a virtual dataset says."""
        found: dict[int, bytes] = {}
        for kind, flags, content in self._messages(address):
            if kind in (_SPACE, _TYPE, _LAYOUT):
                if kind in found or flags & _FLAG_SHARED or len(content) < 2:
                    raise ValueError("its shape, type or layout is twice there, or elsewhere")
                found[kind] = content
        layout = found.get(_LAYOUT, b"")
        if len(found) != 3 or len(layout) < 14:
            raise ValueError("its shape, type or layout is not there")
        mapping = b""  # without sources
        if layout[2:10] != _NOWHERE:
            mapping = self._heap_object(number_at(layout, 2, 8), number_at(layout, 10, 4))
        return VirtualMessages(found[_SPACE], found[_TYPE], mapping)

    def check_attributes(self, address: int) -> None:
        """Check the heaps that attributes which are one text refer to."""
        for kind, _, content in self._messages(address):
            if kind == _ATTRIBUTES and _are_elsewhere(content):
                raise ValueError("it has more attributes than a file of tokens")
            if kind == _ATTRIBUTE:
                heap = _heap_of_attribute(content)
                if heap is not None and heap[0] < 1 << 62:  # else it was never written
                    self._heap_object(*heap)

    def _read(self, address: int, num_bytes: int) -> bytes:
        if not 0 <= address < 1 << 62 or not 0 <= num_bytes <= _MOST_BYTES:
            raise ValueError(f"a header has {num_bytes} bytes at byte {address}")
        return os.pread(self._descriptor, num_bytes, self._base + address)

    def _messages(self, address: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield (type, flags, content) of the messages of an object."""
        head = self._read(address, 64)
        is_new = head.startswith(b"OHDR")
        if is_new:
            flags = head[5]
            at = 6 + (16 if flags & _FLAG_TIMES else 0) + (4 if flags & _FLAG_PHASES else 0)
            width = 1 << (flags & 3)
            parts = [(address + at + width, number_at(head, at, width))]
            shape = 4 + (2 if flags & _FLAG_ORDERED else 0)
        else:
            parts = [(address + 16, number_at(head, 8, 4))]
            shape = 8
        for number, (start, length) in enumerate(parts):
            if number > _MOST_PARTS:
                raise ValueError("a header has no end")
            content = self._read(start, length)
            for kind, flags, message in _cut(content, shape, is_new):
                if kind in (_LAYOUT, _ATTRIBUTE) and flags & _FLAG_SHARED:
                    raise ValueError("the layout or an attribute of an object is elsewhere")
                if kind == _CONTINUATION:
                    at, size = number_at(message, 0, 8), number_at(message, 8, 8)
                    parts.append((at + 4, size - 8) if is_new else (at, size))
                yield kind, flags, message

    def _heap_object(self, address: int, index: int) -> bytes:
        """Return an object of a heap, whose objects must follow each other to its end."""
        head = self._read(address, 16)
        size = number_at(head, 8, 8)
        content = self._read(address, size)
        at, found = 16, {}
        is_whole = head[:5] == b"GCOL\x01" and len(content) == size
        while is_whole and at + 16 <= size:
            number, num_bytes = number_at(content, at, 2), number_at(content, at + 8, 8)
            step = 16 + num_bytes + -num_bytes % 8 if number else num_bytes
            is_whole = 16 <= step <= size - at
            found[number] = content[at + 16 : at + 16 + num_bytes]
            at += step
        if not is_whole or index not in found:
            raise ValueError(f"a heap of texts is not whole, at byte {address}")
        return found[index]


def number_at(content: bytes, at: int, size: int) -> int:
    """Return the number of so many bytes at this place."""
    return int.from_bytes(content[at : at + size], "little")


def _cut(content: bytes, shape: int, is_new: bool) -> Iterator[tuple[int, int, bytes]]:
    """Yield (type, flags, content) of the messages in a part of a header.

    shape  bytes before the content of each
    """
    at, width = 0, 1 if is_new else 2
    while at + shape <= len(content):
        kind, size = number_at(content, at, width), number_at(content, at + width, 2)
        yield kind, content[at + width + 2], content[at + shape : at + shape + size]
        at += shape + size


def _are_elsewhere(content: bytes) -> bool:
    """Return True if attributes are in a heap of their own, as this message says."""
    at = 4 if content[1] & 1 else 2
    return content[at : at + 8] != _NOWHERE


def _heap_of_attribute(content: bytes) -> tuple[int, int] | None:
    """Return (address of a heap, number in it) if an attribute is one text of any length."""
    if content[0] > 1 and content[1] & 3:
        raise ValueError("the type of an attribute is elsewhere")
    version, name, kind, space = content[0], *(number_at(content, at, 2) for at in (2, 4, 6))
    step = 8 if version == 1 else 1
    at = 8 if version < 3 else 9
    at += name + -name % step
    is_variable = len(content) > at and content[at] & 15 == 9
    at += kind + -kind % step + space + -space % step
    if not is_variable or len(content) < at + 16:
        return None
    return number_at(content, at + 4, 8), number_at(content, at + 12, 4)
