"""A solver in C or Fortran that calls shardkit.h: it trains as one in Python does, to the bit, and
each call answers by a code and a sentence.
"""

import functools
import os
import re
import shutil
import subprocess

import pytest
from mpi_jobs import ROOT, build, compiler_of, flags_of, python_of, run_programs

EXAMPLES = ROOT / "examples" / "coupled"
STAND_IN = ROOT / "tests" / "stand_in"
HOST = ROOT / "tests" / "e2e" / "embedding.c"
STEPS, BATCH, NUM_SOLVERS = 40, 12, 2
ORDER, ARGUMENT, MPI, PYTHON, LOST = 1, 2, 3, 4, 5  # of shardkit.h
FUNNELED, MULTIPLE = {"MPICH": 1, "Open MPI": 2}, 3
EXACT = ("-O2", "-ffp-contract=off")


def solver_in_c(library, folder):
    compiler = compiler_of(library)
    return build(folder / "heat", compiler, *EXACT, EXAMPLES / "heat.c", *flags_of(library))


def fortran(library, target, *sources):
    """The program of these sources in Fortran and C, with the MPI of the wheel."""
    if shutil.which("gfortran") is None:
        pytest.skip("no gfortran")
    shown = subprocess.run([compiler_of(library), "-show"], capture_output=True, text=True)
    return build(target, "gfortran", "-w", *EXACT, *sources, *shown.stdout.split()[1:])


def solver_in_fortran(library, folder):
    of_mpi = [STAND_IN / "mpi_f08.c", STAND_IN / "mpi_f08.f90"]  # the wheel has no Fortran
    flags = flags_of(library, "--fortran")
    return fortran(library, folder / "heat", *of_mpi, *flags, EXAMPLES / "heat.f90")


def losses_beside(solver, library="MPICH"):
    """The losses that train.py prints beside these solver ranks."""
    train = [python_of(library), EXAMPLES / "train.py"]
    programs = [(NUM_SOLVERS, [*solver, str(STEPS)]), (1, train)]
    done = run_programs(library, programs, time_limit=300)
    assert not done.returncode, done.stdout + done.stderr
    assert done.stdout.count("predicts its next step") == NUM_SOLVERS
    return re.findall(r"trained step (\d+: loss \S+)", done.stdout)


@functools.cache
def losses_in_python():
    return losses_beside([python_of("MPICH"), EXAMPLES / "heat.py"])


UNDER_OPEN_MPI = pytest.param("Open MPI", marks=pytest.mark.thorough)


@pytest.mark.parametrize("library", ["MPICH", UNDER_OPEN_MPI])
@pytest.mark.parametrize("solver", [solver_in_c, solver_in_fortran])
def test_a_solver_in_another_language_has_the_losses_of_one_in_python(solver, library, tmp_path):
    losses = losses_beside([solver(library, tmp_path)], library)
    assert losses == losses_in_python() and len(losses) == STEPS * NUM_SOLVERS // BATCH


def host(library, folder):
    compiler = compiler_of(library)
    return build(folder / "host", compiler, HOST, *flags_of(library), "-lpthread")


def told(text):
    """{name of a call: (code, sentence)}."""
    found = re.findall(r"^([^:\n]+): (\d) (.*)$", text, re.M)
    return {name: (int(code), sentence) for name, code, sentence in found}


REFUSED = {
    "put before MPI": (MPI, "MPI is not initialized"),
    "start before MPI": (MPI, "MPI is not initialized"),
    "put before start": (ORDER, "no coupling is open; call sk_start"),
    "start on no communicator": (ARGUMENT, "MPI_COMM_NULL"),
    "put after MPI": (MPI, "MPI is finalized"),
}
REFUSED_BESIDE_A_TRAINER = {
    **REFUSED,
    "start with a wrong option": (ARGUMENT, "rank 0: option 'color=red'; wanted name=value"),
    "start again": (ORDER, "call sk_close() before the next one"),
    "put without fields": (ORDER, "call sk_field() before"),
    "field without array": (ARGUMENT, "an array at address 0"),
    "field without name": (ARGUMENT, "a field without a name"),
    "field of a color": (ARGUMENT, "dtype 'color'; wanted one of NumPy's"),
    "put without weight": (ARGUMENT, "put(weight=0.0); wanted a number above 0"),
    "put of another shape": (ARGUMENT, "put(x = float32 [2]); the first put was x float32 [3]"),
    "predict into another shape": (ARGUMENT, "output is float32 [2, 1], and y float64 [1]"),
    "predict of another shape": (ARGUMENT, "linear of x (3, 1)"),
    "put after finish": (ORDER, "put() after finish()"),
    "close again": (ORDER, "no coupling is open"),
    "put without trainer": (LOST, "rank 1 has left the coupling by KeyError: 'lost'"),
}
MADE = ["start", "solvers", "field x", "field y", "put", "put again", "predict"]
MADE += ["predict by strides", "is_training", "finish", "close", "start a second one"]
AS_IT_WAS = "interrupt 1, pipe 1, handler 1"


def refused_as(found, wanted):
    for name, (code, sentence) in wanted.items():
        assert found[name][0] == code and sentence in found[name][1], (name, found[name])
        assert found[name][1].startswith(f"sk_{name.split()[0]}(): "), found[name]


@pytest.mark.parametrize("library", ["MPICH", "Open MPI"])
def test_each_call_answers_by_a_code_and_a_sentence(library, tmp_path):
    level = {"MPICH": 1, "Open MPI": 3}[library]
    num_puts = {"MPICH": 2, "Open MPI": 42}[library]  # two threads put where MPI lets them
    beside = [python_of(library), HOST.with_name("embedding_rank.py"), str(num_puts)]
    programs = [(1, [host(library, tmp_path), str(level), "trainer"]), (1, beside)]
    done = run_programs(library, programs, time_limit=300)
    assert not done.returncode, done.stdout + done.stderr
    found = told(done.stdout)
    refused_as(found, REFUSED_BESIDE_A_TRAINER)
    assert [name for name in MADE if found[name] != (0, "")] == []
    thread = {"MPICH": (MPI, "ask MPI_Init_thread() for"), "Open MPI": (0, "")}[library]
    assert found["in a thread"][0] == thread[0] and thread[1] in found["in a thread"][1]
    assert "refused: coupled(): rank 0: option 'color=red'" in done.stdout
    sums = [10.0 * (num_puts - 1) + 1, 2.0 * num_puts, 3.0 * num_puts]
    stamps = "'time': [0.5, 1.0], 'weight': [2.0, 1.0]"
    assert f"read {sums} {{'y': [[4.0], [4.0]], {stamps}}}" in done.stdout
    numbers = {
        name: [
            float.fromhex(each)
            for each in re.search(f"^{name} (.*)$", done.stdout, re.M)[1].split()
        ]
        for name in ("predicted", "expected")
    }
    assert numbers["predicted"] == numbers["expected"] and len(numbers["expected"]) == 2
    steered = re.findall(r"^steered (\w+): (\d \d \S+ \S+)", done.stdout, re.M)
    assert steered[:2] == [("rate", "0 1 0.5 0"), ("both", "0 2 1 2")]
    assert steered[2:] == [("both", "2 0 0 0"), ("word", "2 0 0 0"), ("unknown", "0 0 0 0")]
    assert "1 solver rank\n" in done.stdout and "training 1\n" in done.stdout
    assert f"traps 1, locale C, {AS_IT_WAS}" in done.stdout


def alone(program, companion="none", **environment):
    done = subprocess.run(
        [program, "1", companion],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode and AS_IT_WAS in done.stdout, done.stdout + done.stderr
    found = told(done.stdout)
    refused_as(found, REFUSED)
    return found


def test_what_is_wrong_with_python_or_mpi_is_a_code_too(tmp_path):
    program = host("MPICH", tmp_path)
    wanted = {"start alone": (ARGUMENT, "trainers = 1 of 1 ranks")}
    packages = os.path.dirname(os.path.dirname(pytest.__file__))
    path = os.pathsep.join([str(ROOT), packages])
    of_its_own = alone(program, "python", PYTHONPATH=path)
    refused_as(of_its_own, wanted)
    refused_as(of_its_own, {"start after Python": (PYTHON, "the interpreter was finalized")})
    none = alone(program, SHARDKIT_PYTHON=str(tmp_path / "python3"), PYTHONPATH="")
    refused_as(none, {"start alone": (PYTHON, "wanted a Python with shardkit: build with its")})
    other = python_of("Open MPI").parents[1] / "lib"
    mixed = alone(program, MPI4PY_MPIABI="openmpi", LD_LIBRARY_PATH=str(other))
    refused_as(mixed, {"start alone": (MPI, "this program and mpi4py use different MPIs")})


def test_fortran_arrays_and_texts_are_told_as_they_lie(tmp_path):
    sources = flags_of("MPICH", "--fortran", "--sources")[1:]  # and not shardkit.c
    flags = [*flags_of("MPICH", "--cflags"), HOST.with_name("embedded.c"), *sources]
    program = fortran("MPICH", tmp_path / "told", *flags, HOST.with_name("embedded.f90"))
    said = subprocess.run([program], capture_output=True, text=True, timeout=300).stdout
    assert said.splitlines() == TOLD_BY_FORTRAN


TOLD_BY_FORTRAN = [
    "start 2 [in_flight=8]",
    "start 1 []",
    "field real32 float32 [3, 2] [8, 4] 1",
    "field real64 float64 [2] [8] 1",
    "field complex64 complex64 [2] [8] 1",
    "field complex128 complex128 [2] [16] 1",
    "field int8 int8 [2] [1] 1",
    "field int16 int16 [2] [2] 1",
    "field int32 int32 [] [] 7",
    "field int64 int64 [2] [8] 1",
    "field section float32 [2, 1] [16, 4] 2",
    "field backward float64 [2] [-8] 2",
    "field logical no number of C [] [] 0",
    "put number 1",
    "put 0.5 2",
    "predict [1, 4] [1, 2]",
    "steered rate 2 -> 3",
    "error [as C has it] 40",
]
