"""Compiled code is kept where it can be, read back by the next process, and never a reason not to
start.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import threading
import types
from importlib import metadata
from pathlib import Path

import numpy
import pytest

import shardkit
from shardkit.testing.array import (
    Loop,
    MachineCode,
    candidate_folders,
    compiled,
    compiling,
    exp,
    exp2,
    kernels,
    larger,
    like,
    logistic,
    machine_code,
    plus,
    reference_activation,
    targets,
    workshops,
)
from shardkit.testing.files import writers

NO_FOLDER = "/dev/null/folder"  # nobody can make it, not even root


def doubled(x):
    return x + x


def fresh(*folders):
    """The function above, not compiled yet, with its code in these folders."""
    return Loop(doubled, [Path(folder) for folder in folders])


@pytest.fixture
def made(monkeypatch):
    """The signatures that were compiled, one after the other."""
    signatures, image_of = [], compiling.image_of

    def counted(loop, signature, target):
        signatures.append(signature)
        return image_of(loop, signature, target)

    monkeypatch.setattr(compiling, "image_of", counted)
    return signatures


def test_the_second_process_reads_what_the_first_has_compiled(tmp_path, made):
    first, second = fresh(tmp_path), fresh(tmp_path)
    assert first(1.5) == 3.0 and made == [("float64",)]
    assert second(1.5) == 3.0 and len(made) == 1
    assert first(2) == 4 and made[1:] == [("int64",)]
    assert len(list(tmp_path.iterdir())) == 2  # a file for each signature, no leftovers


def test_one_loop_goes_to_the_code_for_the_types_that_it_is_called_with(tmp_path, made):
    function = fresh(tmp_path)
    for _ in range(2):
        for x in (1.5, 2, numpy.float32(0.1), numpy.uint64(2**62 + 1), numpy.int32(-(2**31)), -3):
            assert function(x) == doubled(type(x)(x)) or type(x) is numpy.int32
    assert len(made) == len(set(made)) == 5


def test_the_seconds_of_reading_and_compiling_are_counted_and_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(machine_code, "QUIET_SECONDS", 0.01)
    code = MachineCode()
    monkeypatch.setattr(compiled, "MACHINE_CODE", code)
    fresh(tmp_path)(1.5)
    compiling = code.seconds
    fresh(tmp_path)(1.5)
    reading = code.seconds - compiling
    fresh(tmp_path)(2)
    assert 0 < reading < compiling < code.seconds - reading
    code.said.conclude()
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("shardkit: compiling kernels for this kind of CPU, once")
    told = [re.fullmatch(r"shardkit: compiled (\d) kernels? in [\d.]+ s", line) for line in rest]
    assert sum(int(line[1]) for line in told) == 2


@pytest.mark.parametrize("rank, lines", [("0", 2), ("3", 0)])
def test_the_first_rank_says_once_what_is_compiled(rank, lines, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", rank)
    monkeypatch.setenv("PMI_SIZE", "4")
    code = MachineCode()
    code.refused = "they are of other sources"
    for name in ("one", "other"):
        code.begin(name)
        code.end(name)
    code.said.conclude()
    code.said.conclude()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == lines
    if lines:
        assert told[0].endswith("(they are of other sources)") and "compiled 2 kernels" in told[1]


def test_a_loop_within_another_is_counted_once_and_one_that_failed_not_at_all(
    own_code, monkeypatch
):
    code, now = own_code, iter([1, 2, 5, 8, 10, 13, 20])
    monkeypatch.setattr("shardkit.testing.array.machine_code.time.perf_counter", lambda: next(now))
    code.begin("outer")  # at 1
    code.begin("failed")  # at 2
    code.begin("inner")  # at 5
    code.end("inner")
    code.read(100.0)
    code.end("outer")  # at 8
    assert code.seconds == 7
    code.read(0.5)
    code.begin("next")  # at 10
    code.end("next")  # at 13
    assert code.seconds == 10.5


def test_code_goes_to_the_first_folder_that_can_be_written_to(tmp_path):
    function = fresh(NO_FOLDER, tmp_path / "new" / "folder", tmp_path)
    assert function(1.5) == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert fresh(NO_FOLDER, tmp_path, tmp_path / "new" / "folder")(1.5) == 3.0


def test_code_goes_to_no_folder_that_it_is_not_read_from(tmp_path):
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    shared.chmod(0o777)
    fresh(shared, own)(1.5)
    assert len(list(own.iterdir())) == 1 and not list(shared.glob("*.kernel"))


def test_a_full_disk_leaves_no_part_of_a_file_and_the_next_folder_is_taken(tmp_path, monkeypatch):
    rename = os.rename

    def full(old, new):
        if Path(new).parent.name == "full":
            raise OSError(28, "No space left on device")
        return rename(old, new)

    monkeypatch.setattr(os, "rename", full)
    assert fresh(tmp_path / "full", tmp_path / "free")(1.5) == 3.0
    assert not list((tmp_path / "full").iterdir()) and len(list((tmp_path / "free").iterdir())) == 1


def test_without_any_folder_the_code_is_compiled_and_runs(made):
    function = fresh(NO_FOLDER)
    assert function(1.5) == 3.0 and function(1) == 2 and len(made) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: b"",
        lambda content: b"x" + content[1:],
        lambda content: content[:200] + b"?" + content[201:],
    ],
)
def test_a_damaged_file_is_compiled_again(tmp_path, damage, made):
    fresh(tmp_path)(1.5)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    again = fresh(tmp_path)
    assert again(1.5) == 3.0 and len(made) == 2
    third = fresh(tmp_path)
    assert third(2.5) == 5.0 and len(made) == 2 and list(tmp_path.iterdir()) == [file]


def _other_target():
    return dataclasses.replace(targets.target(), name="another")


@pytest.mark.parametrize(
    "what, other",
    [
        ("_source_digest", lambda: "of another version"),
        ("target", _other_target),
        ("_compiler", lambda: "of another version"),
        ("ABI", "of another Python"),
    ],
)
def test_code_of_other_sources_or_for_another_machine_is_not_used(
    tmp_path, monkeypatch, made, what, other
):
    fresh(tmp_path)(1.5)
    monkeypatch.setattr(compiled, what, other)
    assert fresh(tmp_path)(1.5) == 3.0 and len(made) == 2


@pytest.mark.parametrize("library", ["numba", "llvmlite"])
def test_another_version_of_the_compiler_is_told(library, tmp_path, monkeypatch):
    assert metadata.version(library).encode() in compiled._version_of(library)
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").touch()
    (tmp_path / library / "_version.py").write_text("0.1.2")
    monkeypatch.delitem(sys.modules, library, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert compiled._version_of(library) == b"0.1.2"


def test_code_that_options_of_the_compiler_change_is_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_compiler", compiled._compiler.__wrapped__)
    loop, signature = compiled.loop_named("array.cpu.flat._copy(int8[1], int8[1])")
    names = {fresh(tmp_path).file_name(("float64",))}
    for option, value in (("OPT", "0"), ("OPT", "1"), ("BOUNDSCHECK", "1"), ("DEBUGINFO", "1")):
        with monkeypatch.context() as changed:
            changed.setenv(f"NUMBA_{option}", value)
            names.add(fresh(tmp_path).file_name(("float64",)))
            changed.setattr(compiled.packs, "find", None)  # what came with the package has none
            assert loop._packed(signature) is None
    assert len(names) == 5


def test_code_is_never_read_from_a_folder_that_others_can_write_to(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    private = tmp_path / f"shardkit-kernels-{os.getuid()}"
    candidate_folders.cache_clear()
    try:
        assert candidate_folders()[-1] == private and not private.exists()  # made when it is used
        private.mkdir(mode=0o700)
        candidate_folders.cache_clear()
        assert candidate_folders()[-1] == private
        private.chmod(0o777)
        candidate_folders.cache_clear()
        assert private not in candidate_folders()
    finally:
        candidate_folders.cache_clear()


def test_who_keeps_code_elsewhere_asks_another_workshop_and_afterwards_its_own(
    tmp_path, monkeypatch
):
    own = workshops()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(compiled, "candidate_folders", lambda: (tmp_path,))
        assert workshops() is not own
    assert workshops() is own


def _of_somebody_else(path):
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize("what", ["file", "folder"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(path.stat().st_mode | 0o002),
        lambda path: (os.chown(path, -1, 12345), path.chmod(path.stat().st_mode | 0o020)),
        _of_somebody_else,
    ],
)
def test_code_that_others_can_have_written_is_not_run(tmp_path, what, change, monkeypatch):
    if os.getuid():
        pytest.skip("gives files to other users: for root alone")
    monkeypatch.setattr(writers.pwd, "getpwuid", lambda user: types.SimpleNamespace(pw_name="me"))
    fresh(tmp_path)(1.5)
    (file,) = tmp_path.iterdir()
    assert compiled._read(file) is not None
    change(file if what == "file" else tmp_path)
    assert compiled._read(file) is None
    assert fresh(tmp_path)(1.5) == 3.0


def test_code_under_another_name_or_behind_a_link_is_not_run(tmp_path):
    fresh(tmp_path)(1.5)
    (file,) = tmp_path.iterdir()
    other = file.with_name("another.kernel")
    other.symlink_to(file)
    assert compiled._read(other) is None
    other.unlink()
    file.rename(other)
    assert compiled._read(other) is None
    os.mkfifo(file)
    assert compiled._read(file) is None


# ---- in a process of its own ---------------------------------------------------------------------


def run(code, folder=".", **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


GELU = (
    "import numpy, shardkit; from shardkit.testing.array import kernels; y = "
    "kernels.gelu(numpy.ones(3, 'float32')); "
)


@pytest.mark.thorough
def test_a_settings_file_of_numba_in_the_working_folder_names_no_folder_of_code(tmp_path):
    pytest.importorskip("yaml")
    (tmp_path / ".numba_config.yaml").write_text(f"cache_dir: {tmp_path / 'theirs'}\n")
    code = "from shardkit.testing.array import candidate_folders as c; print(*c())"
    assert "theirs" not in " ".join(run(code, tmp_path, NUMBA_CACHE_DIR=""))


@pytest.mark.thorough
def test_where_only_the_temporary_directory_can_be_written_to_it_starts_and_keeps_its_code_there(
    tmp_path,
):
    package = tmp_path / "installed" / "shardkit"
    shutil.copytree(
        Path(shardkit.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "array/cpu/__pycache__").write_text("a file, where even root cannot make a folder")
    (tmp_path / "temporary").mkdir()
    code = (
        GELU
        + "from shardkit.testing.array import workshops; "
        + "print(shardkit.__file__, y[0], int(not workshops()._idle))"
    )
    for is_read in "01":
        assert run(
            code,
            tmp_path / "installed",
            NUMBA_CACHE_DIR=NO_FOLDER,
            HOME=NO_FOLDER,
            PYTHONPATH="",
            TMPDIR=str(tmp_path / "temporary"),
        ) == [str(package / "__init__.py"), "0.841192", is_read]
    assert (tmp_path / "temporary" / f"shardkit-kernels-{os.getuid()}").is_dir()


@pytest.mark.thorough
def test_without_numba_or_with_it_turned_off_the_plain_twins_compute():
    plain = [reference_activation.__name__, "0.841192"]
    assert (
        run(
            "import sys; sys.modules['numba'] = None; "
            + GELU
            + "print(kernels.KERNELS['gelu'].implementations['cpu'].__module__, y[0])"
        )
        == plain
    )
    assert (
        run(
            GELU + "print(kernels.KERNELS['gelu'].implementations['cpu'].__module__, y[0])",
            NUMBA_DISABLE_JIT="1",
        )
        == plain
    )


def test_importing_shardkit_does_not_import_numba():
    assert run("import sys, shardkit; print('numba' in sys.modules)") == ["False"]


# ---- which twin ----------------------------------------------------------------------------------


def test_other_dtypes_and_byte_orders_go_to_the_plain_twin():
    x = numpy.linspace(-1, 1, 7)
    for dtype in ("float16", ">f4", "longdouble"):
        y = kernels.gelu(x.astype(dtype))
        assert y.dtype == numpy.dtype(dtype).newbyteorder("=") or y.dtype == dtype
        numpy.testing.assert_allclose(y.astype("f8"), kernels.gelu(x), atol=1e-3)
    assert kernels.tree_sum([numpy.arange(3), numpy.arange(3)]).tolist() == [0, 2, 4]


def doubled_into(x, out):
    for i in range(x.size):
        out[i] = x[i] + x[i]


def test_threads_that_call_a_kernel_for_the_first_time_together_agree(tmp_path, made):
    function, x, seen = Loop(doubled_into, [tmp_path]), numpy.arange(1000.0), []
    start = threading.Barrier(4)

    def call():
        start.wait()
        out = numpy.empty_like(x)
        function(x, out)
        seen.append(out.tobytes())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 and set(seen) == {(2 * x).tobytes()} and len(made) == 1


# ---- numbers -------------------------------------------------------------------------------------


@compiled.compiled
def map_exp(x, out):
    for i in range(x.size):
        out[i] = exp(x[i])


@pytest.mark.parametrize(
    "dtype, lowest, highest", [("float32", -87.3, 88.3), ("float64", -708.3, 709.4)]
)
@pytest.mark.thorough(but=1)
def test_exp_is_right_to_two_units_in_the_last_place(dtype, lowest, highest):
    x = numpy.linspace(lowest, highest, 200_003).astype(dtype)
    y, wanted = numpy.empty_like(x), numpy.exp(x.astype("longdouble"))
    map_exp(x, y)
    assert (abs(y - wanted) / wanted).max() < 1.0 * numpy.finfo(dtype).eps  # a unit is eps/2 to eps


@compiled.compiled
def map_exp2(x, out):
    for i in range(x.size):
        out[i] = exp2(x[i])


@pytest.mark.parametrize("dtype, highest", [("float32", 126), ("float64", 1022)])
def test_exp2_is_right_to_two_units_in_the_last_place(dtype, highest):
    x = numpy.linspace(-highest, highest, 200_003).astype(dtype)
    y, wanted = numpy.empty_like(x), numpy.exp2(x.astype("longdouble"))
    map_exp2(x, y)
    assert (abs(y - wanted) / wanted).max() < 1.0 * numpy.finfo(dtype).eps
    whole = numpy.arange(-highest, highest + 1).astype(dtype)
    y = numpy.empty_like(whole)
    map_exp2(whole, y)
    numpy.testing.assert_array_equal(y, numpy.exp2(whole))


@pytest.mark.parametrize("function", [map_exp, map_exp2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exp_of_what_is_not_finite_and_beyond_the_range(dtype, function):
    x = numpy.array([-numpy.inf, -1e9, -0.0, 0.0, 1e9, numpy.inf, numpy.nan], dtype)
    y = numpy.empty_like(x)
    function(x, y)
    numpy.testing.assert_array_equal(
        y, numpy.array([0, 0, 1, 1, numpy.inf, numpy.inf, numpy.nan], dtype)
    )


@compiled.compiled
def reduce(x, out):
    top, total = x[0], like(0.0, x[0])
    for i in range(x.size):
        top, total = larger(top, x[i]), plus(total, logistic(x[i]))
    out[0] = top
    out[1] = total


def reduced(x):
    out = numpy.empty(2, x.dtype)
    reduce(x, out)
    return tuple(out)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_and_the_sum_see_every_element(dtype):
    for size in (1, 2, 7, 16, 33, 1000):
        for place in {0, size // 2, size - 1}:
            x = numpy.full(size, -numpy.inf, dtype)
            x[place] = 0
            assert reduced(x) == (0, 0.5)
            x[place] = numpy.nan
            assert all(numpy.isnan(reduced(x)))
