"""Which ranks share which cores, and what to set if there are too few."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardkit.testing.comm import Seat, crowding, have_cores, own_quotas, ranks_text, share_cores


def seats(*rows):
    """(host, cores, threads) or (host, cores, threads, quotas) each."""
    return [Seat(host, tuple(cores), *rest) for host, cores, *rest in rows]


@pytest.mark.parametrize(
    "rows",
    [
        [("a", range(8), 2)] * 4,  # they fill the host
        [("a", [0, 1], 2), ("a", [2, 3], 2), ("b", [0, 1], 2)],  # bound, two hosts
        [("a", range(4), 1)] * 3,
        [("a", range(8), 2, {"job": 4})] * 2,
        [("a", range(8), 2, {"one": 2}), ("a", range(8), 2, {"other": 2})],  # two containers
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
        (
            [("a", range(8), 2, {"job": 2.5})] * 2,
            "on a ranks 0-1 run 4 threads under a CPU quota of 2.5 cores (cpu.max of their control "
            "group); set run.threads=1",
        ),
        (
            [("a", range(8), 1), ("a", range(8), 1, {"job": 0.5, "around it": 1})],
            "on a rank 1 runs 1 thread under a CPU quota of 0.5 cores (cpu.max of their control "
            "group); give the container or job as many cores as it has ranks",
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
    "everyones, threads",
    [
        ([range(8)] * 4, 2),
        ([range(8)] * 3, 2),
        ([range(2)] * 4, 1),
        ([range(8)], 8),
        ([range(4), range(4, 8)], 4),
    ],
)
def test_a_rank_gets_its_part_of_the_cores_that_it_may_use(everyones, threads):
    of_ranks = seats(*[("a", cores, 1) for cores in everyones])
    assert share_cores(of_ranks[0], of_ranks) == threads


@pytest.mark.parametrize(
    "quotas, threads",
    [
        ([{"job": 4}, {"job": 4}], 2),
        ([{"job": 4}, {}], 4),
        ([{"job": 9, "step": 3}, {"job": 9}], 3),
        ([{"job": 0.5}, {}], 1),
    ],
)
def test_a_rank_gets_its_part_of_the_quotas_that_limit_it(quotas, threads):
    of_ranks = seats(*[("a", range(16), 1, of_rank) for of_rank in quotas])
    assert share_cores(of_ranks[0], of_ranks) == threads


@pytest.mark.parametrize(
    "rows, is_enough",
    [
        ([("a", range(2), 1)] * 2, True),
        ([("a", range(2), 1)] * 3, False),
        ([("a", range(4), 1, {"job": 2})] * 2, True),
        ([("a", range(4), 1, {"job": 1.5})] * 2, False),
        ([("a", range(4), 1, {"one": 1}), ("a", range(4), 1, {"other": 1})], True),
    ],
)
def test_ranks_that_wait_may_spin_if_each_has_a_core_all_of_the_time(rows, is_enough):
    assert have_cores(seats(*rows)) is is_enough


MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 {top} /sys/fs/cgroup/{v1} rw,relatime - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 {top} /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def system(root, groups, files, top="/"):
    """Write a file system with these control groups; return its root."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mountinfo").write_text(MOUNTS.format(top=top, v1="cpu,cpuacct"))
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "groups, files, top, cores",
    [
        ("0::/job/step\n", {"unified/job/step/cpu.max": "150000 100000\n"}, "/", [1.5]),
        (
            "0::/job/step\n",
            {"unified/job/step/cpu.max": "max 100000\n", "unified/job/cpu.max": "50000 100000"},
            "/",
            [0.5],
        ),
        (
            "4:cpu,cpuacct:/job\n0::/\n",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            "/",
            [3],
        ),
        # a container that shows its own group as the top of the mount, by the name of the host
        ("0::/docker/f00\n", {"unified/cpu.max": "200000 100000"}, "/docker/f00", [2]),
        ("0::/docker/f00\n", {"unified/cpu.max": "200000 100000"}, "/elsewhere", [2]),
        ("0::/\n", {"unified/cpu.max": "max 100000"}, "/", []),
        ("0::/gone\n", {}, "/", []),
        ("3:memory:/job\n", {"unified/job/cpu.max": "200000 100000"}, "/", []),
    ],
)
def test_quotas_are_those_of_the_groups_around_this_process(tmp_path, groups, files, top, cores):
    assert list(own_quotas(system(tmp_path, groups, files, top)).values()) == cores


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert own_quotas(tmp_path) == {}


@pytest.fixture
def real_group():
    """A control group of 1.5 cores of this machine."""
    kinds = ("cpu", "cpu.cfs_quota_us", "150000"), ("", "cpu.max", "150000 100000")
    for folder, name, text in kinds:
        group = Path("/sys/fs/cgroup", folder, f"shardkit-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(text)
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group can be made here")


def test_the_quota_of_a_real_group_is_found(real_group):
    ask = "from shardkit.testing.comm import own_quotas; print(list(own_quotas().values()))"
    found = subprocess.run(
        [
            "sh",
            "-c",
            f'echo $$ > {real_group}/cgroup.procs; exec "$@"',
            "sh",
            sys.executable,
            "-c",
            ask,
        ],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert found.stdout.strip() == "[1.5]", found.stderr


@pytest.mark.parametrize(
    "ranks, text", [([0], "0"), ([0, 1, 2, 5], "0-2, 5"), ([3, 1], "1, 3"), ([4, 5], "4-5")]
)
def test_ranks_are_listed_as_runs(ranks, text):
    assert ranks_text(ranks) == text


def test_looking_for_crowds_is_linear_in_the_hosts():
    """Every host went through the seats of all: 1.9 s at 4,096 ranks, on each of them."""
    asked = []

    def num_asked(num_hosts):
        found = []
        for number in range(num_hosts):
            seat = Seat(f"host-{number}", (0, 1), 1)
            found += [seat, seat]
        asked.clear()
        assert crowding([_noting(seat, asked) for seat in found]) == []
        return len(asked)

    assert num_asked(64) <= 2 * num_asked(32) + 64


def _noting(seat, asked):
    class Noting:
        cores, threads, quotas = seat.cores, seat.threads, seat.quotas

        @property
        def host(self):
            asked.append(1)
            return seat.host

    return Noting()
