"""A rank of a coupling is killed: the other side is told, and goes on or ends as it was asked."""

import re
from pathlib import Path

import pytest
from mpi_jobs import run_job

import shardkit as sk

RANK = Path(__file__).with_name("coupled_rank.py")
LIVING = ("--with-ft", "ulfm")
DIED = r"rank \d is missing, which has died"

LEVEL = """
import mpi4py
mpi4py.rc.thread_level = "serialized"
import shardkit as sk
try:
    sk.coupled(None, 1)
except sk.ConfigurationError as error:
    print("refused:", error)
with sk.coupled() as c:
    print("shared:", c.is_solver and c.is_trainer)
"""


def test_a_trainer_needs_the_level_of_threads_and_ranks_that_are_both_do_not(tmp_path):
    script = tmp_path / "level.py"
    script.write_text(LEVEL)
    said = run_job("MPICH", script, num_ranks=2).stdout
    assert said.count("refused: coupled(): rank 1: a trainer receives in a thread") == 2, said
    assert said.count("shared: True") == 2


def killed(lost, on_loss, folder):
    done = run_job(
        "Open MPI",
        RANK,
        lost,
        on_loss,
        folder,
        num_ranks=3,
        launcher_options=LIVING,
        time_limit=300,
    )
    return done.stdout + done.stderr


def test_a_model_is_saved_where_a_solver_rank_is_killed(tmp_path):
    said = killed("solver", "raise", tmp_path / "run")
    step = int(re.search(rf"trainer: step (\d+), .*{DIED}", said)[1])
    assert step > 5 and sk.load(tmp_path / "run").predict([[1.0] * 8]).shape == (1, 1)


@pytest.mark.parametrize("on_loss", ["raise", "go_on"])
def test_a_solver_ends_or_goes_on_where_its_trainer_is_killed(tmp_path, on_loss):
    said = killed("trainer", on_loss, tmp_path / "run")
    if on_loss == "raise":
        assert len(re.findall(rf"solver: .*{DIED}", said)) == 2, said
    else:
        assert len(re.findall(rf"goes on without a training: .*{DIED}", said)) == 2, said
        unwanted = [int(count) for count in re.findall(r"'puts': 400, 'unwanted': (\d+)", said)]
        assert len(unwanted) == 2 and min(unwanted) > 100, said
