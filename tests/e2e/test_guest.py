"""A guest in programs of many forms: good ones are left alone and not spoken of, and a rank that is
killed is named. Some forms here; every form several times, under both MPIs, as a table, with
    python tests/e2e/test_guest.py 2 [WORD]     (runs of each form under each MPI; of those with it)
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
from e2e.guest_rank import CALL_SECONDS  # noqa: E402
from e2e.mpi_jobs import (  # noqa: E402
    LIBRARIES,
    ROOT,
    build,
    compiler_of,
    fair_seconds,
    flags_of,
    python_of,
    run_programs,
    words_of_shardkit,
)

HERE = Path(__file__).parent
C, PYTHON = "C", "Python"
PROGRESS = "shardkit: trial "  # that a trial has ended is no fault
LATE_SECONDS = 10.0  # beyond the time limit of a call, until the job has ended
ANY_MPI = (("MPICH", ()), ("Open MPI", ()))
ULFM = (("Open MPI", ("--with-ft", "ulfm")),)
FACTS = """
import json, sys, mpi4py
packages = [folder for folder in sys.path if folder.endswith("-packages")]
print(json.dumps([mpi4py.get_include(), packages]))
"""


@dataclass(frozen=True)
class Form:
    """A job.

    programs   (number of ranks, C or PYTHON, arguments) of each
    lost       what shardkit must say of the rank that is lost; "": nothing
    code       of the launcher: "0", "not 0", or "any": its own, without MPI_Finalize
    launchers  (MPI, options of its launcher): others cannot run it
    words      that the program must say
    """

    name: str
    programs: tuple
    lost: str = ""
    code: str = "0"
    launchers: tuple = ANY_MPI
    words: tuple = ()

    def __str__(self):
        return self.name


def in_python(*arguments, ranks=3, **wanted) -> Form:
    return Form(" ".join(arguments), ((ranks, PYTHON, arguments),), **wanted)


def in_c(*arguments, words="", **wanted) -> Form:
    name = " ".join(["in C", *arguments, *([words] if words else [])])
    return Form(name, ((3, C, (*arguments, words)),), **wanted)


HALF = ("comm=half",)
DIED = "rank 2 died"
FAILING = ("comm=half", "failing=abort", "fails=trained")
WITH_C = ((1, C, ("0", "half", "open", "")), (2, PYTHON, HALF))
WELL = [
    in_python("finalize=program"),
    in_python("finalize=exit", "shutdown=no"),
    in_python("finalize=never", "end=exit", code="any"),
    in_python("first=shardkit", "comm=none"),
    in_python("first=shardkit", "comm=world", "shutdown=no"),
    in_python("comm=none", "finalize=program", "shutdown=no"),
    in_python("comm=half"),
    in_python("comm=half", "shutdown=no", "finalize=exit", ranks=4),
    in_python("comm=half", "level=single", "shutdown=no"),
    in_python("level=funneled", "finalize=exit"),
    in_python("level=serialized", "comm=half", "finalize=exit"),
    in_python("level=multiple", "end=exit", "finalize=exit"),
    in_python("shutdown=no", ranks=1),
    Form("MPMD", ((1, PYTHON, HALF), (2, PYTHON, (*HALF, "shutdown=no")))),
    Form("MPMD with C", WITH_C),
    in_c("3", "world", "ended"),
    in_c("3", "none", "ended"),
    in_c("3", "none", "open"),
    in_c("0", "half", "open"),
    in_c("1", "half", "ended"),
]
COUPLE, SWEEP = "work=couple", "work=sweep"
INSIDE = [
    in_python(COUPLE),
    in_python(COUPLE, "comm=half", "finalize=exit"),
    in_python(COUPLE, "shutdown=no"),
    in_python(COUPLE, "shutdown=no", "finalize=exit", ranks=4),
    in_python(COUPLE, "comm=half", "level=single"),
    Form("MPMD couple", ((2, PYTHON, (COUPLE,)), (1, PYTHON, (COUPLE, "finalize=exit")))),
    in_c("3", "world", "ended", words=COUPLE),
    in_python(SWEEP),
    in_python(SWEEP, "comm=half", "shutdown=no", "finalize=exit", ranks=4),
    in_c("1", "half", "open", words=SWEEP),
]
ABORTED = [
    in_python("end=abort", code="not 0"),
    in_python("comm=half", "end=abort", "shutdown=no", code="not 0"),
]
KILLED = [
    in_python("fails=ready", lost=DIED),
    in_python("fails=trained", "comm=half", lost=DIED),
    in_python("fails=trained", "comm=half", "level=single", lost=DIED),
    in_python("fails=ready", "first=shardkit", lost=DIED),
    in_python("fails=finalize", lost=DIED),
    in_python("fails=finalize", "comm=half", "finalize=exit", lost=DIED),
    in_python("fails=trained", COUPLE, lost=DIED),
    in_python("fails=trained", COUPLE, "comm=half", "level=single", lost=DIED),
    in_python("fails=trained", SWEEP, "comm=half", lost=DIED),
    in_c("3", "none", "open", words="fails=trained", lost=DIED),
    in_c("3", "world", "open", words=f"fails=trained {COUPLE}", lost=DIED),
]
LEFT = [
    in_python(*FAILING, "how=exit", lost="rank 1 left the program"),
    in_python(*FAILING, "how=error", lost="KeyError: 'lost'"),
    in_python(*FAILING, lost="died"),
    in_python(*FAILING, "how=sleep", lost="no progress in barrier"),
]
ALONE = ("told", "went on")
EXITED = ("fails=trained", "how=exit", "go_on=yes")
KILLED_ALONE = ("fails=trained", "go_on=yes", "finalize=never")
MISSED = [
    in_python(*EXITED, "comm=half", "others=split", ranks=4, words=ALONE),
    in_python("fails=trained", "how=error", "go_on=yes", words=ALONE),
    in_python(*KILLED_ALONE, "others=shutdown", launchers=ULFM, words=ALONE),
    in_python(*KILLED_ALONE, launchers=ULFM, words=ALONE),
    *(in_python(*EXITED, f"others={call}", words=ALONE) for call in ("barrier", "close", "common")),
]
FORMS = [*WELL, *INSIDE, *ABORTED, *KILLED, *LEFT, *MISSED]


@cache
def facts_of(python) -> tuple[str, list]:
    """Return the folder of mpi4py's headers, and the folders of a Python's packages."""
    found = subprocess.run(
        [python, "-c", FACTS], capture_output=True, text=True, timeout=500, check=True
    )
    return json.loads(found.stdout)


@cache
def folder_of_programs() -> tempfile.TemporaryDirectory:
    """Return a folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="guest-")


@cache
def c_program(library) -> Path:
    """Return the program in C that embeds Python, or skip where it cannot be built."""
    compiler, (of_mpi4py, _) = compiler_of(library), facts_of(python_of(library))
    target = Path(folder_of_programs().name, f"guest-{library.replace(' ', '-')}")
    flags = flags_of(library, "--cflags", "--ldflags")
    return build(target, compiler, HERE / "guest.c", f"-I{of_mpi4py}", *flags)


def command_of(library, kind, arguments) -> list:
    """Return the command of a rank."""
    if kind == C:
        return [c_program(library), HERE / "guest_script.py", *arguments]
    return [python_of(library), HERE / "guest_rank.py", *arguments]


def run(library, form, folder):
    """Return the finished job of a form."""
    python = python_of(library)
    programs = [(ranks, command_of(library, *rest)) for ranks, *rest in form.programs]
    has_c = any(kind == C for _, kind, _ in form.programs)
    done = run_programs(
        library,
        programs,
        launcher_options=dict(form.launchers)[library],
        time_limit=200,
        TMPDIR=str(folder),
        PYTHONPATH=os.pathsep.join([str(ROOT), *(facts_of(python)[1] if has_c else [])]),
        PATH=os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        OMPI_MCA_async_mpi_finalize="0",
    )
    done.ended_at = time.time()
    return done


def fault_of(form, done, folder) -> str:
    """Return what is wrong with how a job ended; "" if nothing is."""
    words = [word for word in words_of_shardkit(done) if not word.startswith(PROGRESS)]
    found = re.search(r"lost at ([0-9.]+)", done.stdout)
    seconds = done.ended_at - float(found[1]) if found else 0.0
    if seconds > fair_seconds(CALL_SECONDS + LATE_SECONDS):
        return f"late: {seconds:.1f} s"
    if form.lost:
        words.sort(key=lambda word: form.lost not in word)  # another may say first whom it misses
        is_named = words and form.lost in words[0] and not any(map(_is_new, words[1:]))
        return "" if is_named and done.returncode else f"{done.returncode}, said {words}"
    if words:
        return f"said {words}"
    if form.code != "0":
        return "" if done.returncode or form.code == "any" else "exit code 0"
    if form.words:
        missing = [word for word in form.words if word not in done.stdout]
        return f"the program did not say {missing}" if missing else ""
    return _is_well(form, done, folder)


def _is_new(word):
    """Return False of a rank that says which lost one it waited for."""
    return "CommunicationError" not in word and "is missing, which has" not in word


def _is_well(form, done, folder):
    num_ranks = sum(ranks for ranks, *_ in form.programs)
    if done.returncode:
        return f"exit code {done.returncode}"
    if len(set(re.findall("rank . reached its end", done.stdout))) < num_ranks:
        return "not all came to their end"
    left = [*folder.glob("shardkit-job-*")]
    return f"left {left}" if left else ""


def check(library, form, folder):
    if library not in dict(form.launchers):
        pytest.skip(f"{library} cannot run this")
    done = run(library, form, folder)
    if form.lost == DIED and not words_of_shardkit(done):  # a launcher may be quicker: not twice
        done = run(library, form, folder)
    fault = fault_of(form, done, folder)
    assert not fault, f"{library} {form}: {fault}\n{done.stdout}{done.stderr}"


SOME = [
    ("MPICH", WELL[6]),
    ("MPICH", INSIDE[2]),
    ("MPICH", INSIDE[-1]),
    ("Open MPI", WELL[14]),
    ("Open MPI", ABORTED[0]),
    ("MPICH", KILLED[4]),
    ("Open MPI", KILLED[1]),
    ("MPICH", LEFT[0]),
    ("MPICH", MISSED[0]),
    ("Open MPI", MISSED[2]),
]


@pytest.mark.parametrize("library, form", SOME, ids=str)
def test_a_guest_leaves_its_host_alone_and_names_who_is_killed(library, form, tmp_path):
    check(library, form, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_guest_in_every_form(library, form, tmp_path):
    check(library, form, tmp_path)


def main(times: int, word=""):
    counts = Counter()
    for form in (form for form in FORMS if word in str(form)):
        for library in dict(form.launchers):
            for _ in range(times):
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    done = run(library, form, Path(folder))
                    fault = fault_of(form, done, Path(folder))
                counts[library, "well" if not fault else "fault"] += 1
                print(f"{library:9s} {form!s:60s} {fault or 'well'}", flush=True)
                if fault:
                    print(done.stdout, done.stderr, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
