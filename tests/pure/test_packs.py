"""Packs of machine code: what is in one is used, unless it is of other sources, damaged, or of
somebody else; and why not is said once.
"""

import hashlib
import zipfile

import numpy
import pytest

from shardkit.testing.array import (
    LOOPS,
    Loop,
    MachineCode,
    common,
    compiled,
    compiling,
    going_with,
    machine_code,
    make,
    packs,
    signature_of,
    target,
)


def tripled(x):
    return 3 * x


SIGNATURE = ("float64",)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Folders of packs and of files, both empty."""
    path_of = packs.path_of
    monkeypatch.setattr(
        packs, "path_of", lambda one, folder=tmp_path / "shipped": path_of(one, folder)
    )
    monkeypatch.setattr(compiled, "candidate_folders", lambda: (tmp_path / "own",))
    code = MachineCode()
    for module in (compiled, packs):
        monkeypatch.setattr(module, "MACHINE_CODE", code)
    packs._opened.cache_clear()
    yield tmp_path / "shipped", tmp_path / "own", code
    code.said.conclude()  # now, and not while another test runs
    packs._opened.cache_clear()


def shipped(folder):
    """Write a pack of one loop, as a wheel brings it."""
    loop = Loop(tripled)
    content = compiling.image_of(loop, SIGNATURE, target()).pack()
    path = packs.path_of(target(), folder)
    packs.write(path, {packs.key_of(loop.name, SIGNATURE): (loop.sources, content)})
    return path


def is_found(own) -> bool:
    """Call the loop as another process would; return whether nothing was compiled and kept."""
    packs._opened.cache_clear()
    loop = Loop(tripled)
    assert loop(1.5) == 4.5
    return not own.exists()


def test_code_of_a_pack_is_used_and_nothing_else_is_in_its_folder(folders):
    folder, own, code = folders
    path = shipped(folder)
    assert is_found(own) and code.refused == ""
    assert list(folder.iterdir()) == [path] and path.name.startswith(target().name)
    assert Loop(tripled)(2) == 6 and len(list(own.iterdir())) == 1  # a type that it has not


def _damage(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def _of_other_sources(path):
    (line, (_, content)) = next(iter(packs._opened(path).items()))
    packs.write(path, {line: (hashlib.sha256(b"older").hexdigest(), content)})


@pytest.mark.parametrize(
    "change, reason",
    [
        (_damage, "is damaged"),
        (_cut, "is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (_of_other_sources, "are of other sources"),
        (lambda path: path.chmod(0o666), "others can have written"),
        (lambda path: path.parent.chmod(0o777), "others can have written"),
    ],
)
def test_a_pack_that_cannot_be_used_is_left_out_and_the_reason_is_said_when_it_compiles(
    folders, change, reason, monkeypatch
):
    folder, own, code = folders
    change(shipped(folder))
    told = []
    monkeypatch.setattr(machine_code, "tell", told.append)
    assert not is_found(own) and reason in code.refused
    assert [text.count(code.refused) for text in told][:1] == [1]
    assert sum(code.refused in text for text in told) == 1


def test_code_of_a_package_in_an_archive_is_of_its_content(tmp_path):
    digests = set()
    for version in ("a", "b"):
        archive = tmp_path / version / "all.zip"
        archive.parent.mkdir()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("shardkit/array/cpu/rules.py", f"VERSION = '{version}'")
        digests.add(compiled._digest_of(archive / "shardkit/array/cpu"))
    assert len(digests) == 2


def test_without_a_pack_nothing_is_said_of_one(folders):
    _, own, code = folders
    assert not is_found(own) and code.refused == ""


def test_lines_are_taken_apart_as_they_were_made():
    for signature in (("int64",), ("(int64, (float32[1], bool))", "a.b:C(int64[2]!)", "uint8"), ()):
        line = packs.key_of("array.cpu.rules._adam", signature)
        assert packs.parts_of_key(line) == ("array.cpu.rules._adam", signature)


@pytest.mark.parametrize("has_pairs", [True, False])
def test_common_lines_name_loops_that_there_are_once_each(has_pairs):
    lines = common(has_pairs)
    assert len(lines) == len(set(lines)) > 50
    assert any("attention" in line for line in lines) and any("comm.node" in line for line in lines)
    assert has_pairs == any("uint32" in line and "attention" in line for line in lines)


def test_a_line_is_made_into_the_code_that_a_call_asks_for():
    x = numpy.ones(3, "float32")
    loop_line = packs.key_of("array.cpu.flat._copy", signature_of((x, x)))
    made_from, content = make(loop_line)
    assert made_from == LOOPS["array.cpu.flat._copy"].sources
    assert compiled.Image.unpack(content).code_bytes > 0


def test_what_goes_with_a_loop_is_what_follows_it_in_a_run_of_its_dtype():
    def named(line, has_pairs=False):
        return [each.partition("(")[0].rpartition(".")[2] for each in going_with(line, has_pairs)]

    assert named("array.cpu.activation._swiglu(uint16[1], uint16[1], uint16[1])") == [
        "_swiglu_backward"
    ]
    assert named("array.cpu.activation._swiglu(float64[1], float64[1], float64[1])") == []
    lines = common(False)
    attention = [line for line in lines if line.startswith("array.cpu.attention._attend(")]
    assert list(map(named, attention)) == [["_attend_backward"]] * 2  # float32, bfloat16
    assert all(set(going_with(line, False)) <= set(lines) - {line} for line in lines)
    assert sum(map(len, map(named, lines))) < len(lines) / 2
