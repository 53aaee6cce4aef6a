"""Object files become images: relocations are what the ABI says; what is not known is refused.

The objects are made here, byte by byte, so that those of other machines are linked too.
"""

import struct

import pytest

from shardkit.testing.array import PAGE_BYTES, LinkError, linked

X86, ARM = 62, 183
CODE, DATA = 1, 2  # numbers of sections
OUTSIDE, INSIDE, THERE = 2, 3, 4  # numbers of symbols: not in the object, in its code, in its data
INSIDE_AT, THERE_AT = 0x40, 0x18
NO_OPERATION = {X86: b"\x90" * 4, ARM: struct.pack("<I", 0xD503201F)}


def aligned(content):
    return content + bytes(-len(content) % 8)


def elf(machine, relocations, *, place=16, word=None, about=CODE):
    """Return an object file: 128 bytes of code, 64 of data; relocations (kind, symbol, addend)."""
    code = bytearray(NO_OPERATION[machine] * 32)
    if word is not None:
        struct.pack_into("<I", code, place, word)
    rows = b"".join(
        struct.pack("<QIIq", place, kind, symbol, addend) for kind, symbol, addend in relocations
    )
    names = b"\0entry\0outside\0inside\0there\0"
    symbols = [(0, 0, 0), (1, CODE, 0), (7, 0, 0), (15, CODE, INSIDE_AT), (22, DATA, THERE_AT)]
    table = b"".join(
        struct.pack("<IBBHQQ", name, 0x12, 0, section, value, 0) for name, section, value in symbols
    )
    texts = b"\0.text\0.data\0.rela\0.symtab\0.strtab\0.shstrtab\0"

    def name(text):
        return texts.index(b"\0" + text.encode() + b"\0") + 1

    # name, kind, flags, content, link, info, alignment
    sections = [
        (0, 0, 0, b"", 0, 0, 0),
        (name(".text"), 1, 6, bytes(code), 0, 0, 16),
        (name(".data"), 1, 3, bytes(64), 0, 0, 8),
        (name(".rela"), 4, 0, rows, 4, about, 8),
        (name(".symtab"), 2, 0, table, 5, 1, 8),
        (name(".strtab"), 3, 0, names, 0, 0, 1),
        (name(".shstrtab"), 3, 0, texts, 0, 0, 1),
    ]
    body, heads = b"", b""
    for kind_name, kind, flags, content, link, info, alignment in sections:
        heads += struct.pack(
            *("<IIQQQQIIQQ", kind_name, kind, flags, 0, 64 + len(body), len(content)),
            *(link, info, alignment, 0),
        )
        body += aligned(content)
    return (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 7, 6)
        + body
        + heads
    )


def word_at(image, at, form="<I"):
    return struct.unpack_from(form, image.content, at)[0]


def signed(value, bits):
    return value - (1 << bits) if value >> bits - 1 else value


def place_of_address(image, symbol="outside"):
    return next(place for place, name in image.externals if name == symbol)


def jump_of_x86(image, at):
    """Return the place whose address the jump at this place goes to."""
    assert image.content[at : at + 2] == b"\xff\x25"
    return at + 6 + word_at(image, at + 2, "<i")


def page_of_arm(image, at):
    word = word_at(image, at)
    pages = signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21)
    return (at & ~0xFFF) + (pages << 12)


# ---- x86-64 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, form, bits", [(2, "<i", 32), (4, "<i", 32), (24, "<q", 64)])
@pytest.mark.parametrize("addend", [-4, 0, 12])
def test_distances_within_an_image_of_x86(kind, form, bits, addend):
    for symbol, wanted in ((INSIDE, INSIDE_AT), (THERE, PAGE_BYTES["x86_64"] + THERE_AT)):
        image = linked(elf(X86, [(kind, symbol, addend)]), "entry")
        assert image.code_bytes == PAGE_BYTES["x86_64"] and image.entry == 0
        assert 16 + word_at(image, 16, form) == wanted + addend and not image.externals


def test_a_call_out_of_an_image_of_x86_goes_by_a_jump_to_the_address_that_is_filled_in():
    image = linked(elf(X86, [(4, OUTSIDE, -4)]), "entry")
    jump = 16 + word_at(image, 16, "<i") + 4
    assert 128 <= jump < image.code_bytes
    assert jump_of_x86(image, jump) == place_of_address(image) >= image.code_bytes
    assert image.externals == ((place_of_address(image), "outside"),) and not image.relatives


@pytest.mark.parametrize("kind", [9, 41, 42])
def test_addresses_that_code_of_x86_reads_are_in_the_data(kind):
    image = linked(elf(X86, [(kind, OUTSIDE, -4), (kind, OUTSIDE, -4)]), "entry")
    assert 16 + 4 + word_at(image, 16, "<i") == place_of_address(image) >= image.code_bytes
    image = linked(elf(X86, [(kind, INSIDE, -4)]), "entry")
    (place,) = image.relatives
    assert 16 + 4 + word_at(image, 16, "<i") == place >= image.code_bytes
    assert word_at(image, place, "<Q") == INSIDE_AT and not image.externals


@pytest.mark.parametrize("machine, kind", [(X86, 1), (ARM, 257)])
def test_addresses_in_the_data_are_filled_in_when_it_is_loaded(machine, kind):
    image = linked(elf(machine, [(kind, OUTSIDE, 0)], about=DATA), "entry")
    assert (image.code_bytes + 16, "outside") in image.externals
    image = linked(elf(machine, [(kind, INSIDE, 8)], about=DATA), "entry")
    assert image.relatives == (image.code_bytes + 16,)
    assert word_at(image, image.code_bytes + 16, "<Q") == INSIDE_AT + 8


# ---- aarch64 -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [282, 283])  # b, bl
def test_branches_of_arm_within_an_image_and_out_of_it(kind):
    for addend in (0, -32, 8):
        image = linked(elf(ARM, [(kind, INSIDE, addend)], word=0x94000000), "entry")
        word = word_at(image, 16)
        assert word >> 26 == 0x25 and 16 + 4 * signed(word & 0x3FFFFFF, 26) == INSIDE_AT + addend
    image = linked(elf(ARM, [(kind, OUTSIDE, 0)], word=0x94000000), "entry")
    stub = 16 + 4 * signed(word_at(image, 16) & 0x3FFFFFF, 26)
    page, low, jump = (word_at(image, stub + 4 * n) for n in range(3))
    assert page & 0x9F00001F == 0x90000010  # adrp x16
    assert low & 0xFFC003FF == 0xF9400210  # ldr x16, [x16, ...]
    assert jump == 0xD61F0200  # br x16
    assert page_of_arm(image, stub) + (low >> 10 & 0xFFF) * 8 == place_of_address(image)


def test_pages_and_places_within_them_of_arm():
    there = PAGE_BYTES["aarch64"] + THERE_AT
    image = linked(elf(ARM, [(275, THERE, 8)], word=0x90000000), "entry")
    assert page_of_arm(image, 16) == (there + 8) & ~0xFFF and word_at(image, 16) & 31 == 0
    for kind, shift in ((277, 0), (278, 0), (284, 1), (285, 2), (286, 3)):
        image = linked(elf(ARM, [(kind, THERE, 8)], word=0x91000000), "entry")
        assert (word_at(image, 16) >> 10 & 0xFFF) << shift == there + 8 & 0xFFF, kind
    image = linked(elf(ARM, [(299, THERE, 8)], word=0x91000000), "entry")
    assert (word_at(image, 16) >> 10 & 0xFFF) << 4 == there + 8 & 0xFFF
    with pytest.raises(LinkError, match="not a multiple of 16"):
        linked(elf(ARM, [(299, THERE, 0)]), "entry")


@pytest.mark.parametrize("symbol", [OUTSIDE, INSIDE])
def test_addresses_that_code_of_arm_reads_are_in_the_data(symbol):
    pages = linked(elf(ARM, [(311, symbol, 0)], word=0x90000000), "entry")
    lows = linked(elf(ARM, [(312, symbol, 0)], word=0xF9400000), "entry")
    place = page_of_arm(pages, 16) + (word_at(lows, 16) >> 10 & 0xFFF) * 8
    assert place in (lows.relatives if symbol == INSIDE else [place_of_address(lows)])


@pytest.mark.parametrize("kind, form", [(261, "<i"), (260, "<q")])
def test_distances_of_arm(kind, form):
    image = linked(elf(ARM, [(kind, THERE, 4)]), "entry")
    assert 16 + word_at(image, 16, form) == PAGE_BYTES["aarch64"] + THERE_AT + 4


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("machine, known", [(X86, (1, 2, 4, 9, 24, 41, 42)), (ARM, ())])
def test_relocations_that_are_not_known_are_refused_by_their_number(machine, known):
    for kind in {*range(1, 60), *range(512, 600, 7)} - set(known):
        with pytest.raises(LinkError, match=f"relocation {kind} of "):
            linked(elf(machine, [(kind, INSIDE, 0)]), "entry")


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(60), "of 64 bits"),
        (elf(X86, [])[:18] + struct.pack("<H", 21) + elf(X86, [])[20:], "machine 21"),
        (elf(X86, [(1, INSIDE, 0)]), "an address within code"),
        (elf(X86, [(2, INSIDE, 1 << 40)]), "a distance of"),
        (elf(ARM, [(283, INSIDE, 1 << 28)]), "a branch of"),
        (elf(X86, [(1, OUTSIDE, 8)], about=DATA), "an address beside symbol 'outside'"),
    ],
)
def test_what_cannot_be_linked_is_named(content, words):
    with pytest.raises(LinkError, match=words):
        linked(content, "entry")
