"""The door for files of others: what is refused, with which words, before memory is taken; and that
the package has no second one.
"""

import ast
import bz2
import gzip
import lzma
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import h5py
import numpy
import pytest
from sources import files
from token_sources import documents, write_documents

import shardkit
from shardkit import CheckpointError, FileError, ShardkitError
from shardkit.testing.base import CorpusError, InputError
from shardkit.testing.data import (
    TableSamples,
    TextData,
    format_named,
    head_of,
    is_token_file,
    open_table,
    open_token_file,
    unpack,
)
from shardkit.testing.files import (
    checked_bytes,
    loaded,
    mapped,
    npy_array,
    npz_arrays,
    open_regular,
    read_bytes,
    read_json,
    read_toml,
    understood,
)

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

PACKAGE = Path(shardkit.__file__).parent
FOUR = numpy.dtype("<f4")

# ---- opening -------------------------------------------------------------------------------------

NODES = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a device": lambda path: os.symlink("/dev/zero", path),
    "a link to itself": lambda path: os.symlink(os.path.basename(path), path),
}


@pytest.mark.parametrize("kind", NODES)
def test_what_is_no_ordinary_file_is_refused_at_once(kind, tmp_path):
    NODES[kind](tmp_path / "x")
    with pytest.raises(InputError, match="x (is not an ordinary file|cannot be opened)") as caught:
        read_bytes(tmp_path / "x", 100)
    assert caught.value.path == str(tmp_path / "x")


def test_a_link_is_followed_where_a_user_names_it_and_not_in_a_checkpoint(tmp_path):
    (tmp_path / "real").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("real")
    assert read_bytes(tmp_path / "link", 3) == b"abc"
    with pytest.raises(CheckpointError, match="it is a link"):
        open_regular(tmp_path / "link", error=CheckpointError, follows_links=False)


def test_what_the_user_can_mend_keeps_its_class(tmp_path):
    with pytest.raises(FileNotFoundError, match="nobody"):
        read_json(tmp_path / "nobody")


def test_a_file_is_read_whole_or_not_at_all(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", 5) == b"12345"
    with pytest.raises(CorpusError, match="has 5 bytes; wanted 4 at most"):
        read_bytes(tmp_path / "x", 4, error=CorpusError)


# ---- JSON and TOML -------------------------------------------------------------------------------

NO_JSON = {
    "deep": (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    "twins": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is there twice"),
    "twins behind many": (
        b"{" + b"".join(b'"%x":0,' % number for number in range(200_000)) + b'"7":0}',
        "'7' is there twice",
    ),
    "NaN": (b'{"a": NaN}', "NaN is no number"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is no number"),
    "long number": (b'{"a": ' + b"9" * 5000 + b"}", "4300"),
    "no UTF-8": (b'{"a": "\xff"}', "utf-8"),
    "a list": (b"[1]", "no JSON object but a list"),
    "cut": (b'{"a": ', "Expecting value"),
}


@pytest.mark.parametrize("case", NO_JSON)
def test_json_that_is_none_is_refused_with_the_file_and_the_reason(case, tmp_path):
    content, words = NO_JSON[case]
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"x\.json is damaged: .*{words}"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    "content",
    [
        b"a = ",
        b"a = " + b"[" * 9000,
        b"a = " + b"9" * 5000,
        b"a = '\xff'",
        b"a = 0x" + b"f" * 6000,
        b"[a]\nb = [1, {c = 0b" + b"1" * 64 + b"}]",
        b"a = -9223372036854775809",
    ],
)
def test_toml_that_is_none_is_refused(content, tmp_path):
    (tmp_path / "x.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.toml is not TOML"):
        read_toml(tmp_path / "x.toml")


def test_integers_of_64_bits_are_toml(tmp_path):
    (tmp_path / "x.toml").write_text("a = 9223372036854775807\nb = -9223372036854775808")
    assert read_toml(tmp_path / "x.toml") == {"a": (1 << 63) - 1, "b": -1 << 63}


def test_damage_has_a_path_and_a_field_and_is_told_once(tmp_path):
    with pytest.raises(CheckpointError, match="mesh of a.json is damaged: it has no 'data'") as e:
        with understood("a.json", "mesh", error=CheckpointError):
            {}["data"]
    assert (e.value.path, e.value.field) == ("a.json", "mesh")
    with pytest.raises(CorpusError) as e, understood("a.json", "mesh"):
        raise CorpusError("as it was")
    assert str(e.value) == "as it was"
    assert str(pickle.loads(pickle.dumps(e.value))) == "as it was"


def test_all_errors_about_files_are_of_one_family():
    for kind in (InputError, CorpusError, CheckpointError):
        assert issubclass(kind, FileError) and issubclass(kind, ShardkitError)
        again = pickle.loads(pickle.dumps(kind("text", "a", "b")))
        assert (str(again), again.path, again.field) == ("text", "a", "b")


# ---- arrays --------------------------------------------------------------------------------------

NO_ARRAY = [
    ("O", 0, (2,)),
    ("V8", 0, (2,)),
    ("S4", 0, (2,)),
    ("M8[s]", 0, (2,)),
    ("c8", 0, (2,)),
    ([("a", "f4")], 0, (2,)),
    ([("a", "O")], 0, (2,)),
    ("f4", 0, (9,)),
    ("f4", 4, (8,)),
    ("f4", -4, (2,)),
    ("f4", 0, (-1,)),
    ("f4", 0, (1 << 40, 1 << 40)),
    ("f4", 0, (0, 1 << 62)),
    ("f4", 1 << 64, (1,)),
    ("f4", 0, (1 << 70,)),
    ("f4", 0, (1,) * 40),
]


@pytest.mark.parametrize("read", [mapped, loaded])
@pytest.mark.parametrize("dtype, at, shape", NO_ARRAY)
def test_an_array_that_is_not_in_the_file_takes_no_memory(read, dtype, at, shape, tmp_path):
    (tmp_path / "x").write_bytes(bytes(32))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="weights of .*x"):
            read(tmp_path / "x", dtype, at, shape, field="weights")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [mapped, loaded])
def test_an_array_in_the_file_is_read_where_it_is(read, tmp_path):
    values = numpy.arange(12, dtype=">i2").reshape(3, 4)
    (tmp_path / "x").write_bytes(b"odd" + values.tobytes())
    found = read(tmp_path / "x", ">i2", 3, (3, 4))
    assert numpy.array_equal(found, values) and not found.flags.writeable
    assert read(tmp_path / "x", "f8", 3, (0, 7)).shape == (0, 7)


def test_the_bytes_of_an_array_are_counted_without_overflow():
    assert checked_bytes("x", FOUR, 8, (2, 3), 32) == 24
    with pytest.raises(FileError):
        checked_bytes("x", FOUR, 8, (1 << 32, 1 << 32), 1 << 62)


def npy(header, numbers=b""):
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + numbers


NO_NPY = [
    npy("{'descr': '|O', 'fortran_order': False, 'shape': (2**60,)}"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}"),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9,)}", bytes(35)),
    npy("{'descr': '<f4', 'fortran_order': False, 'shape': (9,"),
    npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 3)}", bytes(36)),
    npy("(" * 100),
    b"\x93NUMPY\x09\0",
    b"",
]


@pytest.mark.parametrize("number", range(len(NO_NPY)))
def test_npy_files_of_others_are_refused_by_name(number, tmp_path):
    (tmp_path / "x.npy").write_bytes(NO_NPY[number])
    with pytest.raises(CorpusError, match=r"x\.npy"):
        npy_array(tmp_path / "x.npy", error=CorpusError)


def test_an_object_array_is_never_unpickled(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("something was unpickled"))
    numpy.savez(tmp_path / "x.npz", a=numpy.array([print, 1], object), b=numpy.ones(3))
    assert npz_arrays(tmp_path / "x.npz")["b"].shape == (3,)
    with pytest.raises(ShardkitError, match="records or lists"):
        TableSamples(open_table(tmp_path / "x.npz"), ["a"])


# ---- HDF5 ----------------------------------------------------------------------------------------


def table_refused(path, words, name="x"):
    with pytest.raises(ShardkitError, match=words) as caught:
        samples = TableSamples(open_table(path), [name])
        samples.read(numpy.array([0]))
    assert str(path) in str(caught.value)


HUGE = {
    "contiguous": {},
    "chunked": {"chunks": (1024, 1024)},
    "compressed": {"chunks": (1024, 1024), "compression": "gzip"},
}


@pytest.mark.parametrize("how", HUGE)
def test_a_small_file_that_claims_terabytes_is_refused_before_memory_is_taken(how, tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", (1 << 21, 1 << 20), "f4", **HUGE[how])
    assert (tmp_path / "x.h5").stat().st_size < 5000
    tracemalloc.start()
    try:
        table_refused(tmp_path / "x.h5", r"x of .*x\.h5 claims 8,796,093,022,208 bytes")
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_values_in_files_that_the_file_names_are_not_read(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(range(100)))
    with h5py.File(tmp_path / "external.h5", "w") as file:
        file.create_dataset("x", (100,), "u1", external=[(str(tmp_path / "secret"), 0, 100)])
    table_refused(tmp_path / "external.h5", "has its values in other files")
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["x"] = numpy.arange(100.0)
    (tmp_path / "own").mkdir()
    with h5py.File(tmp_path / "own/virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((100,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "source.h5"), "x", (100,))
        file.create_virtual_dataset("x", layout)
    table_refused(tmp_path / "own/virtual.h5", "source.h5 is not in the folder of the file")
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["x"] = h5py.ExternalLink("source.h5", "x")
        file["y"] = h5py.SoftLink("x")
    table_refused(tmp_path / "link.h5", "has no x")


def test_a_filter_that_comes_from_elsewhere_is_not_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("HDF5_PLUGIN_PATH", raising=False)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((10,))
        properties.set_filter(h5py.h5z.FILTER_DEFLATE, h5py.h5z.FLAG_OPTIONAL, (4,))
        kind, space = h5py.h5t.py_create(FOUR), h5py.h5s.create_simple((1000,))
        made = h5py.h5d.create(file.id, b"x", kind, space, properties)
        made.write(h5py.h5s.ALL, h5py.h5s.ALL, numpy.ones(1000, FOUR))
    content = (tmp_path / "x.h5").read_bytes()
    filter_message = b"\x01\x00\x08\x00\x01\x00\x01\x00deflate\0"  # number, bytes of its name, ...
    assert filter_message in content
    (tmp_path / "x.h5").write_bytes(
        content.replace(filter_message, b"\x05\x7d" + filter_message[2:])
    )
    table_refused(tmp_path / "x.h5", "compressed by filter 32005")


# ---- token files ---------------------------------------------------------------------------------

POINTERS = """
from pathlib import Path
from shardkit.testing.data import open_token_file
from shardkit.testing.base import CorpusError
try:
    open_token_file(Path("evil.h5"))
except CorpusError as error:
    assert error.path == "evil.h5" and error.field == "documents", vars(error)
    print(error)
"""


@pytest.mark.thorough
def test_a_token_file_of_pointers_is_refused_and_none_is_followed(tmp_path):
    with h5py.File(tmp_path / "evil.h5", "w") as file:
        facts = {"format": "shardkit tokens", "version": 1, "vocabulary_size": 64}
        file.attrs.update({**facts, "tokenizer_sha256": "x", "end_of_text": -1})
        file["tokens"] = numpy.zeros(1000, "u2")
        texts = numpy.array([b"x", b"y"], object)
        file.create_dataset("documents", data=texts, dtype=h5py.string_dtype())
        at = file["documents"].id.get_offset()
    with open(tmp_path / "evil.h5", "r+b") as file:
        file.seek(at)
        file.write((0x4141414141414141).to_bytes(8, "little") * 2)
    done = subprocess.run(
        [sys.executable, "-c", POINTERS],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0 and "documents has shape (2,) and dtype object" in done.stdout


@pytest.mark.parametrize("dtype", ["O", "f8", "i4", ">i8", "S8", [("a", "i8")]])
def test_documents_and_tokens_of_other_dtypes_are_refused(dtype, tmp_path):
    path = write_documents(tmp_path, "tokens", documents(5))
    for name in ("documents", "tokens"):
        with h5py.File(path, "r+") as file:
            del file[name]
            kind = h5py.string_dtype() if dtype == "O" else numpy.dtype(dtype)
            file.create_dataset(name, (6,), kind)
        with pytest.raises(CorpusError, match=r"tokens\.h5"):
            open_token_file(path)


@pytest.mark.parametrize("offsets", [[0, 5, 3, 9], [0, -1, 2, 9], [1, 2, 3, 9], [0, 2, 3, 8]])
def test_documents_that_are_not_parts_of_the_tokens_are_refused(offsets, tmp_path):
    path = write_documents(tmp_path, "tokens", [numpy.arange(40, 43)] * 3)
    with h5py.File(path, "r+") as file:
        file["documents"][...] = offsets
    with pytest.raises(CorpusError, match="its documents are not parts of its tokens"):
        open_token_file(path)


def test_a_heap_of_texts_in_which_the_library_goes_in_circles_is_refused(tmp_path):
    path = write_documents(tmp_path, "tokens", documents(5))
    content = bytearray(path.read_bytes())
    at = content.index(b"GCOL") + 16
    while int.from_bytes(content[at : at + 2], "little"):
        num_bytes = int.from_bytes(content[at + 8 : at + 16], "little")
        at += 16 + num_bytes + -num_bytes % 8
    content[at + 8 : at + 16] = bytes(8)  # the size of what is free
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="a heap of texts is not whole"):
        open_token_file(path)
    assert not is_token_file(path)


@pytest.mark.parametrize("how", ["many", "named type"])
def test_attributes_that_are_stored_elsewhere_are_not_asked_for(how, tmp_path):
    path = write_documents(tmp_path, "tokens", documents(5))
    assert is_token_file(path)
    with h5py.File(path, "r+", libver="latest") as file:
        if how == "many":
            file.attrs.update({f"a{number}": "text" for number in range(20)})
        else:
            file["type"] = h5py.string_dtype()
            file.attrs.create("named", "text", dtype=file["type"])
    assert not is_token_file(path)


# ---- Megatron, nanoGPT ---------------------------------------------------------------------------

_HEAD = 34
INDEXES = {  # of 12 sequences: {what is wrong: (byte, dtype, value, words)}
    "a negative size": (_HEAD, "<i4", -1, "a size is negative"),
    "a larger size": (_HEAD, "<i4", 5000, "one behind the other"),
    "a pointer elsewhere": (_HEAD + 4 * 12 + 8, "<i8", 1 << 60, "one behind the other"),
    "a negative pointer": (_HEAD + 4 * 12, "<i8", -8, "one behind the other"),
    "a document beyond": (_HEAD + 12 * 12 + 8, "<i8", 13, "not parts of its 12 sequences"),
    "a negative document": (_HEAD + 12 * 12 + 8, "<i8", -1, "not parts of its 12 sequences"),
    "many sequences": (18, "<u8", 1 << 61, "sequences in"),
    "many documents": (26, "<u8", (1 << 64) - 1, "wanted version 1"),
    "no documents": (26, "<u8", 0, "wanted version 1"),
    "another dtype": (17, "u1", 6, "dtype code 6"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_every_number_of_a_megatron_index_is_checked(case, tmp_path):
    at, dtype, value, words = INDEXES[case]
    path = write_documents(tmp_path, "megatron", documents(12))
    index = path.with_suffix(".idx")
    content = bytearray(index.read_bytes())
    new = numpy.array(value, dtype).tobytes()
    content[at : at + len(new)] = new
    index.write_bytes(content)
    with pytest.raises(CorpusError, match=rf"corpus\.idx.*{words}"):
        format_named("megatron").segment(path, TextData(path=(str(path),)))


def test_a_meta_file_is_not_loaded_even_if_it_asks_for_memory(tmp_path):
    path = write_documents(tmp_path, "nanogpt", documents(5))
    meta = path.with_name("meta.pkl")
    assert format_named("nanogpt").vocabulary_size(path) == 256
    memo = b"\x80\x02}q\x00r\xff\xff\xff\x7fX\x01\x00\x00\x00aK\x05s."  # memo number 2^31 - 1
    for content in (memo, b"\x80\x04\x8e" + b"\xff" * 8, b"cos\nsystem\n(S'true'\ntR.", b"", b"x"):
        meta.write_bytes(content)
        with pytest.raises(CorpusError, match=r"meta\.pkl is not read"):
            format_named("nanogpt").vocabulary_size(path)


# ---- compressed files ----------------------------------------------------------------------------


def nothing():
    """Be told that the work gets on."""


PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_streams_behind_each_other_with_zeros_between_are_one_file(suffix, tmp_path):
    pack, path = PACK[suffix], tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack(b"one ") + bytes(1000) + pack(b"two" * 500_000) + bytes(9))
    assert unpack(path, tmp_path, nothing).read_bytes() == b"one " + b"two" * 500_000
    assert head_of(path, 6) == b"one tw"


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", ["cut", "flipped", "followed", "zeros"])
def test_damaged_streams_are_refused_by_name(suffix, damage, tmp_path):
    packed = bytearray(PACK[suffix](os.urandom(5000)))
    if damage == "cut":
        del packed[-20:]
    elif damage == "flipped":
        packed[-9 if suffix == ".gz" else len(packed) // 2] ^= 255
    elif damage == "followed":
        packed += b"something else"
    else:
        packed += bytes((1 << 20) + 1)
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(packed)
    with pytest.raises(CorpusError, match=r"a\.txt.* is damaged and cannot be unpacked"):
        unpack(path, tmp_path, nothing)


def test_an_xz_file_that_wants_gigabytes_to_be_unpacked_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"text", filters=filters))
    with pytest.raises(CorpusError, match="cannot be unpacked: Memory usage limit"):
        unpack(tmp_path / "a.txt.xz", tmp_path, nothing)


def test_a_file_that_unpacks_to_thousands_of_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shardkit.testing.data.unpacking._SMALL", 1 << 20)
    (tmp_path / "a.txt.bz2").write_bytes(bz2.compress(b"a" * (1 << 24)))
    with pytest.raises(CorpusError, match="too many for its size"):
        unpack(tmp_path / "a.txt.bz2", tmp_path, nothing)


# ---- one door ------------------------------------------------------------------------------------

DOOR = {"files/reading.py", "files/arrays.py"}
# What opens files without it: {file: why}
OTHERS = {
    "array/": "this machine, and files of the package",
    "comm/": "this machine, and the job's own folder, which its user alone may enter",
    "doctor/": "files that it has just made",
    "gpu/": "this machine, and files of the package",
    "plan/measure.py": "this machine",
    "plan/band.py": "files of the package",
    "files/ownership.py": "processes of this machine",
    "files/removing.py": "folders, of which it only has the names",
    "files/writing.py": "files that it has just made",
    "report/page.py": "files of the package",
    "slurm/render.py": "files of the package, or templates that a setting names",
    "train/terminal.py": "this machine",
    "train/start.py": "this machine",
    "cli/generate.py": "prompts, which may come through a pipe",
    "data/mapped.py": "this machine, and what the door opened",
    "data/hdf5.py": "through the library, behind the door",
    "checkpoint/format/hdf5.py": "files that it writes, and tries of the doctor",
}
READS = {"read_text", "read_bytes", "memmap", "fromfile", "load", "loads", "File", "ZipFile"}
# (object, name): of modules that read files whole
MODULES = {"numpy", "json", "tomllib", "h5py", "zipfile", "pickle", "gzip", "lzma", "bz2"}


def reads_of(nodes):
    """(line, text) of each call that reads a file by its name, or opens one to read."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        text, function = ast.unparse(node), node.func
        if isinstance(function, ast.Name) and function.id == "open":
            mode = next((a.value for a in node.args[1:2] if isinstance(a, ast.Constant)), "r")
            is_of_descriptor = text.startswith("open(open_regular(")
            if not set(mode) & set("wax+") and not is_of_descriptor:
                yield node.lineno, text
        elif isinstance(function, ast.Attribute):
            owner = ast.unparse(function.value)
            is_method = function.attr in ("read_text", "read_bytes") and owner != "reading"
            is_library = owner.split(".")[0] in MODULES and function.attr in READS - {"loads"}
            is_open = owner == "os" and function.attr == "open"
            is_open = is_open and not any(
                w in text for w in ("O_CREAT", "O_RDWR", "O_WRONLY", "flags")
            )
            if is_method or is_library or is_open:
                yield node.lineno, text


def test_files_are_read_through_one_door():
    wrong = [
        f"{name}:{line}: {text[:80]}"
        for path, module in files()
        if (name := str(path)) not in DOOR and not name.startswith(tuple(OTHERS))
        for line, text in reads_of(module.nodes)
    ]
    assert not wrong, "read them through shardkit/files/reading.py:\n" + "\n".join(wrong)


def test_a_second_door_would_be_found():
    for text in (
        "open(path)",
        "open(path, 'rb')",
        "path.read_text()",
        "Path(x).read_bytes()",
        "numpy.load(path)",
        "numpy.memmap(path, 'f4')",
        "h5py.File(path)",
        "os.open(path, os.O_RDONLY)",
        "json.load(file)",
    ):
        assert [*reads_of(ast.walk(ast.parse(text)))], text
    for text in ("open(path, 'wb')", "read_json(path)", "os.open(path, os.O_WRONLY)"):
        assert not [*reads_of(ast.walk(ast.parse(text)))], text
