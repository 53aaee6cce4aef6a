"""Which ranks share which cores, and what to set if there are too few."""

import pytest

from shardkit.comm.mpi.launch import Seat, crowding, ranks_text, share_cores


def seats(*rows):
    """(host, cores, threads) each."""
    return [Seat(host, tuple(cores), threads) for host, cores, threads in rows]


@pytest.mark.parametrize(
    "rows",
    [
        [("a", range(8), 2)] * 4,  # they fill the host
        [("a", [0, 1], 2), ("a", [2, 3], 2), ("b", [0, 1], 2)],  # bound, two hosts
        [("a", range(4), 1)] * 3,
    ],
)
def test_threads_that_fit_their_cores_are_no_crowd(rows):
    assert crowding(seats(*rows)) == []


@pytest.mark.parametrize(
    "rows, words",
    [
        (
            [("a", range(8), 8)] * 4,
            "on a ranks 0-3 run 32 threads on 8 cores; set run.threads=2 (OMP_NUM_THREADS=2)",
        ),
        (
            [("a", range(2), 1)] * 4,
            "on a ranks 0-3 run 4 threads on 2 cores; start 2 ranks there, or give the job more "
            "cores",
        ),
        (
            [("b", range(4), 1), ("a", [0], 4)],
            "on a rank 1 runs 4 threads on 1 core; set run.threads=1, or bind wider: "
            "srun --cpus-per-task=4",
        ),
        (
            [("a", [0, 1], 1), ("a", [2, 3], 2), ("a", [2, 3], 2)],
            "on a ranks 1-2 run 4 threads on 2 cores; set run.threads=1",
        ),
    ],
)
def test_a_crowd_is_named_with_what_to_set(rows, words):
    texts = crowding(seats(*rows))
    assert len(texts) == 1 and texts[0].startswith(words)


def test_every_crowded_host_is_named_once():
    assert [
        text.split()[1]
        for text in crowding(seats(*[("a", range(2), 2)] * 2, *[("b", range(2), 2)] * 2))
    ] == ["a", "b"]


@pytest.mark.parametrize(
    "own, everyones, threads",
    [
        (range(8), [range(8)] * 4, 2),
        (range(8), [range(8)] * 3, 2),
        (range(2), [range(2)] * 4, 1),
        (range(8), [range(8)], 8),
        (range(4), [range(4), range(4, 8)], 4),
    ],
)
def test_a_rank_gets_its_part_of_the_cores_that_it_may_use(own, everyones, threads):
    assert share_cores(tuple(own), [tuple(cores) for cores in everyones]) == threads


@pytest.mark.parametrize(
    "ranks, text", [([0], "0"), ([0, 1, 2, 5], "0-2, 5"), ([3, 1], "1, 3"), ([4, 5], "4-5")]
)
def test_ranks_are_listed_as_runs(ranks, text):
    assert ranks_text(ranks) == text
