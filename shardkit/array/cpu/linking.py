"""Link an object file of LLVM, so that a process can use it by copying it into memory.

    object (ELF)                        image
    .text .rodata ... | .data .bss      code, constants | data, places of addresses
    relocations                         filled in: distances within the image
                                        left: addresses of symbols, and places in the image

What is left is 8 bytes at an offset each (images.py fills them in). Any relocation that is not
known here is refused by its name.
Source: System V ABI, AMD64 supplement; ELF for the Arm 64-bit architecture.
"""

import struct
from dataclasses import dataclass, field

from .images import Image

MACHINES = {62: "x86_64", 183: "aarch64"}
PAGE_BYTES = {"x86_64": 1 << 12, "aarch64": 1 << 16}  # the largest there is
_ALLOCATED, _WRITABLE = 2, 1
_NO_BITS, _RELOCATIONS = 8, 4
_UNDEFINED, _COMMON = 0, 0xFFF2
_LEFT_OUT = (".eh_frame", ".note", ".llvm", ".comment")


class LinkError(Exception):
    """The object has something that is not known here."""


@dataclass
class _Section:
    """A section of the object, and where it is in the image."""

    name: str
    kind: int
    flags: int
    content: bytes
    size: int
    alignment: int
    link: int
    about: int  # of relocations: the section that they change
    offset: int = -1


@dataclass(frozen=True)
class _Symbol:
    name: str
    section: int
    value: int
    size: int


@dataclass
class _Linker:
    """One object becomes one image."""

    machine: str
    sections: list[_Section]
    symbols: list[_Symbol]
    content: bytearray = field(default_factory=bytearray)
    code_bytes: int = 0
    stubs: dict[int, int] = field(default_factory=dict)  # of symbols, in the code
    places: dict[int, int] = field(default_factory=dict)  # of symbols' addresses, in the data
    commons: dict[int, int] = field(default_factory=dict)
    externals: dict[int, str] = field(default_factory=dict)
    relatives: list[int] = field(default_factory=list)

    def link(self, entry: str) -> Image:
        self._lay_out()
        for section in self.sections:
            if section.kind == _RELOCATIONS and self.sections[section.about].offset >= 0:
                for place, kind, symbol, addend in struct.iter_unpack("<QIIq", section.content):
                    at = self.sections[section.about].offset + place
                    self._relocate(at, kind, symbol, addend)
        start = next(n for n, symbol in enumerate(self.symbols) if symbol.name == entry)
        return Image(
            bytes(self.content),
            self.code_bytes,
            self._offset(start),
            tuple(sorted(self.externals.items())),
            tuple(sorted(self.relatives)),
        )

    # ---- places ----------------------------------------------------------------------------------

    def _lay_out(self):
        kept = [section for section in self.sections if _is_kept(section)]
        for section in kept:
            if not section.flags & _WRITABLE:
                self._put(section)
        used = self._used_symbols()
        for number in used:
            if self.symbols[number].section == _UNDEFINED:
                self.stubs[number] = self._room(16, 16)
        self.code_bytes = self._room(0, PAGE_BYTES[self.machine])
        for section in kept:
            if section.flags & _WRITABLE:
                self._put(section)
        for number in used:
            symbol = self.symbols[number]
            if symbol.section == _COMMON:
                self.commons[number] = self._room(symbol.size, max(8, symbol.value))
            self.places[number] = self._room(8, 8)
        for number in used:
            if self.symbols[number].section == _UNDEFINED:
                self._write_address(self.places[number], number, 0)
                self._write_stub(self.stubs[number], self.places[number])
        self._room(0, PAGE_BYTES[self.machine])

    def _used_symbols(self):
        used = {}
        for section in self.sections:
            if section.kind == _RELOCATIONS and _is_kept(self.sections[section.about]):
                for _, _, symbol, _ in struct.iter_unpack("<QIIq", section.content):
                    used[symbol] = True
        return sorted(used)

    def _put(self, section):
        section.offset = self._room(section.size, section.alignment)
        self.content[section.offset : section.offset + len(section.content)] = section.content

    def _room(self, size, alignment) -> int:
        self.content += bytes(-len(self.content) % max(1, alignment))
        offset = len(self.content)
        self.content += bytes(size)
        return offset

    def _offset(self, number) -> int:
        """Return where a symbol is in the image."""
        symbol = self.symbols[number]
        if symbol.section == _COMMON:
            return self.commons[number]
        offset = self.sections[symbol.section].offset
        if offset < 0:
            raise LinkError(f"symbol {symbol.name!r} is in a section that is left out")
        return offset + symbol.value

    def _is_external(self, number) -> bool:
        return self.symbols[number].section == _UNDEFINED

    def _target(self, number) -> int:
        """Return where code that calls or reads a symbol finds it."""
        return self.stubs[number] if self._is_external(number) else self._offset(number)

    def _address_place(self, number) -> int:
        """Return the place that holds the address of a symbol."""
        place = self.places[number]
        if not self._is_external(number) and place not in self.relatives:
            self._write_address(place, number, 0)
        return place

    def _write_address(self, at, number, addend):
        if self._is_external(number):
            if addend:
                raise LinkError(f"an address beside symbol {self.symbols[number].name!r}")
            self.externals[at] = self.symbols[number].name
        else:
            struct.pack_into("<Q", self.content, at, self._offset(number) + addend)
            self.relatives.append(at)

    # ---- relocations -----------------------------------------------------------------------------

    def _relocate(self, at, kind, symbol, addend):
        change = _CHANGES[self.machine].get(kind)
        if change is None:
            raise LinkError(f"relocation {kind} of {self.machine} is not known")
        change(self, at, symbol, addend)

    def _write_stub(self, at, place):
        """Write a jump to the address in that place."""
        if self.machine == "x86_64":
            self.content[at : at + 6] = b"\xff\x25" + struct.pack("<i", place - at - 6)
        else:
            load_page, load, jump = 0x90000010, 0xF9400210, 0xD61F0200  # adrp, ldr, br of x16
            struct.pack_into("<III", self.content, at, load_page, load, jump)
            self._page_distance(at, place)
            self._low_bits(at + 4, place, 3)

    def _address_64(self, at, symbol, addend):
        if at < self.code_bytes:
            raise LinkError("an address within code")
        self._write_address(at, symbol, addend)

    def _distance(self, at, symbol, addend):
        self._write_signed("<i", at, self._target(symbol) + addend - at)

    def _distance_64(self, at, symbol, addend):
        self._write_signed("<q", at, self._target(symbol) + addend - at)

    def _distance_of_address(self, at, symbol, addend):
        self._write_signed("<i", at, self._address_place(symbol) + addend - at)

    def _write_signed(self, form, at, distance):
        try:
            struct.pack_into(form, self.content, at, distance)
        except struct.error:
            raise LinkError(f"a distance of {distance} bytes") from None

    # aarch64: distances are parts of instructions

    def _branch(self, at, symbol, addend):
        distance = self._target(symbol) + addend - at
        self._set_bits(at, 0x3FFFFFF, distance >> 2 & 0x3FFFFFF)
        if not -(1 << 27) <= distance < 1 << 27:
            raise LinkError(f"a branch of {distance} bytes")

    def _page(self, at, symbol, addend):
        self._page_distance(at, self._target(symbol) + addend)

    def _page_of_address(self, at, symbol, addend):
        self._page_distance(at, self._address_place(symbol) + addend)

    def _page_distance(self, at, place):
        pages = (place >> 12) - (at >> 12)
        self._set_bits(at, 0x60FFFFE0, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5)

    def _low_bits(self, at, place, shift):
        low = place & 0xFFF
        if low & (1 << shift) - 1:
            raise LinkError(f"place {place:#x} is not a multiple of {1 << shift}")
        self._set_bits(at, 0xFFF << 10, low >> shift << 10)

    def _set_bits(self, at, mask, bits):
        (word,) = struct.unpack_from("<I", self.content, at)
        struct.pack_into("<I", self.content, at, word & ~mask | bits)


def _low(shift):
    return lambda self, at, symbol, addend: self._low_bits(at, self._target(symbol) + addend, shift)


_CHANGES = {
    "x86_64": {
        1: _Linker._address_64,  # R_X86_64_64
        2: _Linker._distance,  # PC32
        4: _Linker._distance,  # PLT32
        9: _Linker._distance_of_address,  # GOTPCREL
        24: _Linker._distance_64,  # PC64
        41: _Linker._distance_of_address,  # GOTPCRELX
        42: _Linker._distance_of_address,  # REX_GOTPCRELX
    },
    "aarch64": {
        257: _Linker._address_64,  # R_AARCH64_ABS64
        260: _Linker._distance_64,  # PREL64
        261: _Linker._distance,  # PREL32
        275: _Linker._page,  # ADR_PREL_PG_HI21
        277: _low(0),  # ADD_ABS_LO12_NC
        278: _low(0),  # LDST8_ABS_LO12_NC
        282: _Linker._branch,  # JUMP26
        283: _Linker._branch,  # CALL26
        284: _low(1),  # LDST16_ABS_LO12_NC
        285: _low(2),  # LDST32_ABS_LO12_NC
        286: _low(3),  # LDST64_ABS_LO12_NC
        299: _low(4),  # LDST128_ABS_LO12_NC
        311: _Linker._page_of_address,  # ADR_GOT_PAGE
        312: lambda self, at, symbol, addend: self._low_bits(
            at, self._address_place(symbol) + addend, 3
        ),  # LD64_GOT_LO12_NC
    },
}


def linked(content: bytes, entry: str) -> Image:
    """Return the image of an object file, which is entered at this symbol.

    Errors: LinkError names what is not known here.
    """
    if content[:6] != b"\x7fELF\x02\x01":
        raise LinkError("not an ELF file of 64 bits, little-endian")
    (machine,) = struct.unpack_from("<H", content, 18)
    if machine not in MACHINES:
        raise LinkError(f"machine {machine} is not known")
    sections = _sections(content)
    return _Linker(MACHINES[machine], sections, _symbols(sections)).link(entry)


def _sections(content):
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count, names = struct.unpack_from("<HHH", content, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", content, table + n * size) for n in range(count)]
    text = content[rows[names][4] :]
    return [
        _Section(
            _text_at(text, name),
            kind,
            flags,
            b"" if kind == _NO_BITS else content[start : start + length],
            length,
            alignment,
            link,
            about,
        )
        for name, kind, flags, _, start, length, link, about, alignment, _ in rows
    ]


def _symbols(sections):
    table = next(section for section in sections if section.name == ".symtab")
    text = sections[table.link].content
    return [
        _Symbol(_text_at(text, name), section, value, size)
        for name, _, _, section, value, size in struct.iter_unpack("<IBBHQQ", table.content)
    ]


def _text_at(table, start) -> str:
    return table[start : table.index(b"\0", start)].decode()


def _is_kept(section) -> bool:
    return bool(section.flags & _ALLOCATED) and not section.name.startswith(_LEFT_OUT)
