"""One rank goes wrong in every way at every place: the job ends, or goes on, and its first words
name the rank and the place.

Some rows of the table here; all of them, on both MPIs, and three times if you like, with
    python -m pytest -m sweep tests/e2e/test_fault_table.py
"""

import re
from pathlib import Path

import pytest
from e2e.mpi_jobs import LIBRARIES, fair_seconds, run_job, seconds_since, words_of_shardkit

SCRIPT = Path(__file__).with_name("faulty_rank.py")
END_SECONDS = 10.0  # from when a fault can be known to the end of the job
DETECTION_SECONDS = {
    "stop": 2.0 + 0.25 + 0.7
}  # the watchdog's limit, its period, and the time for stacks
IN_STEP = ("forward", "backward", "reduction")
PLACES = ("start-up", *IN_STEP, "saving", "exit")
DOING = {
    "start-up": "start-up",
    "saving": "saving",
    "exit": "exit",
    **dict.fromkeys(IN_STEP, "step 3"),
}

# how -> (exit code 0?, the first words, what else the words hold); {doing} and {site} depend on the
# place
TABLE = {
    "raise": (r"rank 1 \({doing}\) failed: RuntimeError: the data is gone", "faulty_rank.py"),
    "exit": (r"rank 1 \({doing}\) failed: SystemExit: 3", ""),
    "kill": (r"rank 1 died: its process ended without a word", ""),
    "stop": (r"no progress in .* within 2 s: rank 1 is missing", r"missing: rank 1 of"),
    "other": (
        r".*rank 1 called barrier; rank 0 and \d more called all_reduce\(sum, 5 float64\)",
        "",
    ),
    "count": (
        r".*rank 1 called all_reduce\(sum, 4 float64\); rank 0 and \d more called "
        r"all_reduce\(sum, 5 float64\)",
        "",
    ),
    "memory": (
        r".*rank 1 (ran out of memory in .* of step 3|\({doing}\) failed: MemoryError): ",
        "Unable to allocate 8.00 EiB",
    ),
    "nan": ("", ""),
}


def rows():
    """(how, where, library, ranks, pipeline ranks) of all that makes sense."""
    for library in LIBRARIES:
        for how in TABLE:
            for where in IN_STEP if how == "nan" else PLACES:
                yield how, where, library, 3, 1
                if (
                    how not in ("other", "count") and where in IN_STEP
                ):  # stages do not all come by at one time
                    yield how, where, library, 4, 2


def covering_rows():
    """Each way under one of the libraries in turn, each place, and a few meshes."""
    everything = list(rows())
    for number, how in enumerate(TABLE):
        library = LIBRARIES[number % 2]
        own = [row for row in everything if row[0] == how and row[2] == library]
        yield own[(2 * number + 3) % len(own)]
        if how == "stop":
            yield next(row for row in own if row[1] == "exit")


def check(tmp_path, how, where, library, num_ranks, pipeline):
    """Run one row. A rank that is killed races with the launcher, which kills its neighbor too:
    that one has three tries.
    """
    for attempt in range(3 if how == "kill" else 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = run_job(
            library,
            SCRIPT,
            how,
            where,
            pipeline,
            folder,
            num_ranks=num_ranks,
            SHARDKIT_CHECK=str(int(how in ("other", "count"))),
        )
        assert (folder / "struck").exists(), done.stderr + done.stdout
        seconds, words = seconds_since(folder / "struck"), words_of_shardkit(done)
        assert seconds < fair_seconds(END_SECONDS) + DETECTION_SECONDS.get(how, 0.0)
        if how == "nan":
            endings = re.findall(r"ends with (\d) skipped, loss ([\d.]+)", done.stdout)
            assert done.returncode == 0 and len(endings) == num_ranks, done.stderr
            assert len(set(endings)) == 1 and endings[0][0] == "1" and not words, (endings, words)
            return seconds
        assert done.returncode != 0 and len(words) <= 1, done.stderr
        if words:
            break
    first, also = (pattern.replace("{doing}", DOING[where]) for pattern in TABLE[how])
    assert words and re.match(f"shardkit: {first}", words[0]), done.stderr + done.stdout
    assert re.search(also, done.stderr), done.stderr
    return seconds


def row_id(value):
    return str(value).replace(" ", "-")


@pytest.mark.parametrize("how, where, library, ranks, pipeline", list(covering_rows()), ids=row_id)
def test_one_rank_goes_wrong_and_the_job_says_so_and_ends(
    tmp_path, how, where, library, ranks, pipeline
):
    check(tmp_path, how, where, library, ranks, pipeline)


@pytest.mark.sweep
@pytest.mark.parametrize("time", range(3))
@pytest.mark.parametrize("how, where, library, ranks, pipeline", list(rows()), ids=row_id)
def test_every_row(tmp_path, how, where, library, ranks, pipeline, time):
    print(
        f"{check(tmp_path, how, where, library, ranks, pipeline):.2f} s from the fault to the end"
    )


def test_the_rows_that_are_always_run_cover_ways_places_and_libraries():
    chosen, everything = list(covering_rows()), list(rows())
    assert set(chosen) <= set(everything)
    for column in range(5):
        assert {row[column] for row in chosen} == {row[column] for row in everything}
