"""Which machine code a CPU gets, and what becomes of calls with types that it is not for."""

import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from shardkit import ConfigurationError
from shardkit.testing.array import Loop, Unknown, compiled, images, parts_of, signature_of, targets

ROOT = Path(__file__).parents[2]
V3 = "avx avx2 fma f16c bmi1 bmi2 movbe abm popcnt sse4_2"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
X86_INFO = (
    "processor\t: 0\nvendor_id\t: {vendor}\nmodel\t\t: 1\nflags\t\t: {flags}\n\n"
    "processor\t: 1\nflags\t\t: none\n"
)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that makes this process believe it is on another machine, and wants a target."""

    def change(name, cpuinfo, wanted=""):
        (tmp_path / "cpuinfo").write_text(cpuinfo)
        monkeypatch.setattr(targets, "CPUINFO", str(tmp_path / "cpuinfo"))
        monkeypatch.setattr(targets.platform, "machine", lambda: name)
        monkeypatch.setenv("SHARDKIT_KERNELS", wanted)
        targets._cpu.cache_clear()
        return targets.target.__wrapped__()

    yield change
    targets._cpu.cache_clear()


@pytest.mark.parametrize(
    "flags, name, vector_bytes",
    [
        ("sse2", "x86-64", 16),
        (V3, "x86-64-v3", 32),
        (V3.replace("fma", ""), "x86-64", 16),
        (V3 + " avx512f", "x86-64-v3", 32),
        (V4, "x86-64-v4", 64),
        (V4 + " avx512_bf16 amx_tile", "x86-64-v4bf16", 64),
    ],
)
def test_a_cpu_gets_the_best_target_that_it_has_all_flags_of(machine, flags, name, vector_bytes):
    for vendor in ("GenuineIntel", "AuthenticAMD"):
        found = machine("x86_64", X86_INFO.format(vendor=vendor, flags=flags))
        assert (found.name, found.vector_bytes) == (name, vector_bytes) and found.is_kept
        assert found.has_pairs == (name == "x86-64-v4bf16")
        assert found.has_half_floats == (name != "x86-64")


def test_arm_gets_one_target_and_other_machines_what_llvm_finds(machine):
    found = machine("aarch64", "processor : 0\nFeatures : fp asimd sve\n")
    assert found.name == "aarch64" and found.features == "+neon" and found.is_kept
    other = machine("riscv64", "isa : rv64imafdc\n")
    assert other.cpu == "" and not other.is_kept and not other.has_half_floats


def test_the_own_code_of_a_cpu_is_not_that_of_another_kind(machine):
    one, same, vendor, flags = (
        machine("x86_64", X86_INFO.format(vendor=vendor, flags=flags), "host")
        for vendor, flags in (("a", V3), ("a", V3), ("b", V3), ("a", V4))
    )
    assert one == same and len({one.name, vendor.name, flags.name}) == 3
    assert one.cpu == "" and (one.vector_bytes, flags.vector_bytes) == (32, 64)


def test_another_target_can_be_chosen_and_one_that_does_not_run_here_is_named(machine):
    lower = machine("x86_64", X86_INFO.format(vendor="a", flags=V4), "X86-64-v3 ")
    assert lower.name == "x86-64-v3"
    targets.check_that_it_runs_here(lower)
    higher = machine("x86_64", X86_INFO.format(vendor="a", flags=V3), "x86-64-v4")
    with pytest.raises(ConfigurationError, match="no avx512bw, .* runs is x86-64-v3"):
        targets.check_that_it_runs_here(higher)
    with pytest.raises(ConfigurationError, match="'zen'; wanted one of x86-64-v4bf16, .*, host"):
        machine("x86_64", X86_INFO.format(vendor="a", flags=V3), "zen")


# ---- signatures and calls ------------------------------------------------------------------------


def count(x):
    """Return a number whatever is given."""
    return 7


class Derived(numpy.ndarray):
    """An array of a class of its own."""


def frozen(array):
    array.flags.writeable = False
    return array


def unaligned(dtype):
    return numpy.zeros(33, numpy.uint8)[1:].view(dtype)


GIVEN = [
    *(True, 3, -(2**63), 2.5, numpy.bool_(True), numpy.int32(3), numpy.uint8(3), numpy.uint64(3)),
    *(numpy.float32(2.5), numpy.float64(2.5), numpy.int64(3), numpy.longlong(3)),
    *(numpy.zeros(shape, "f4") for shape in (0, 4, (2, 2), (1, 2, 3), ())),
    *(numpy.zeros(4, dtype) for dtype in ("f8", "i4", "i8", "q", "u2", "u4", "?", "u1", "f2")),
    *(frozen(numpy.zeros(4, "f4")), numpy.zeros(4, "f4").view(Derived)),
    *(numpy.zeros(8, "f4")[::2], numpy.zeros((3, 2), "f4").T, numpy.zeros(4, ">f4")),
    *(unaligned("f4"), numpy.zeros(4, "c8"), numpy.zeros(4, "O"), numpy.zeros(4, "M8[s]")),
    *((1, 2), (1, 2, 3), (1, 2.0), (1, (2, 3)), (numpy.zeros(4, "f4"), 1), ()),
    *(targets.Target, None, "text", [1, 2], {}, object(), 2.5j),
]


def signature_or_none(argument):
    try:
        return signature_of((argument,))
    except Unknown:
        return None


def test_code_runs_for_the_types_that_it_was_made_for_and_for_no_others(tmp_path):
    """A read-only array is another type for code that may write; not for code made for it."""
    made_for = [True, 3, 2.5, numpy.float32(1), numpy.zeros(4, "f4"), frozen(numpy.zeros(4, "f4"))]
    made_for += [numpy.zeros((2, 2), "f4"), numpy.zeros(4, "i8"), (1, 2), (numpy.zeros(4, "f4"), 1)]
    loop = Loop(count, [tmp_path])
    for one, other in itertools.product(made_for, GIVEN):
        signature, found = signature_of((one,)), signature_or_none(other)
        fits = signature == found or (signature[0].rstrip("!") == (found or ("",))[0])
        result = loop.entry_for(signature)(other)
        assert result == 7 if fits else result is NotImplemented, (signature, found)
    for wrong in ((), (1, 2), (1, 2, 3)):
        assert loop.entry_for(("int64",))(*wrong) is NotImplemented


def test_a_loop_refuses_what_no_code_is_made_for_by_a_type_error(tmp_path):
    loop = Loop(count, [tmp_path])
    for argument in (None, "text", numpy.zeros(8, "f4")[::2], numpy.zeros(4, ">f4"), 2.5j):
        with pytest.raises(TypeError, match="a compiled loop takes"):
            loop(argument)
    with pytest.raises(OverflowError):
        loop(2**63)


def test_signatures_are_taken_apart_as_they_were_made():
    for argument in GIVEN:
        (text,) = signature_or_none(argument) or (None,)
        if isinstance(argument, tuple):
            assert parts_of(text) == ("", list(signature_of(argument)))
        elif text is not None:
            assert parts_of(text) is None


def added_up(count, x):
    """Return a sum by way of buffers of its own, and of other shapes."""
    numbers, ones = numpy.empty(count, numpy.float32), numpy.ones((count, 3))
    column, last = numbers.reshape((count, 1)), x.reshape((2, -1))
    for i in range(count):
        numbers[i] = i
    total = 0.0
    for i in range(count):
        total += column[i, 0] + ones[i, 2] + last[1, 0]
    return total


def test_loops_make_buffers_of_their_own_and_give_them_back(tmp_path):
    loop, x = Loop(added_up, [tmp_path]), numpy.arange(4.0)
    for count in (0, 1, 5, 10_000, 10_000):
        assert loop(count, x) == sum(range(count)) + 3 * count
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3_000):
        loop(10_000, x)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert more < 100_000  # of 840,000 kB


ENDS = """
import sys, threading, time
from pathlib import Path
from shardkit.testing.array import Loop

def spin(rounds):
    total = 0.5
    for i in range(rounds):
        total = total * 0.999 + 1e-3 / (i + 1)
    return total

loop = Loop(spin, [Path(sys.argv[1])])
loop(10)
for _ in range(4):
    threading.Thread(target=loop, args=(10**12,), daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.thorough
def test_a_process_ends_while_a_thread_of_it_is_in_a_loop(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    for _ in range(5):  # most would die by a signal without memory that stays
        command = [sys.executable, str(script), str(tmp_path)]
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=100
        )
        assert done.returncode == 0, done.stderr


def test_where_code_cannot_be_kept_numba_compiles_in_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "can_keep_code", lambda: False)
    loop = Loop(count, [tmp_path])
    assert [loop(x) for x in (1, 2.5, numpy.zeros(3), numpy.zeros((2, 2), "f4"), 2)] == [7] * 5
    assert not list(tmp_path.iterdir()) and len(loop.signatures) == 1


def test_objects_that_are_laid_out_in_another_way_are_noticed(monkeypatch):
    assert images.is_layout_known()
    names = [name for name in vars(images) if name.endswith("_AT")]
    assert len(names) == 12
    for name in names:
        with monkeypatch.context() as changed:
            changed.setattr(images, name, getattr(images, name) + 8)
            assert not images.is_layout_known(), name
