"""gpu_transport "auto": which way GPU arrays go between ranks, and what is said about it."""

import platform
import sys
from itertools import product

import pytest
from builders import train
from gpu_verbs import plain_twins  # noqa: F401
from stand_in import fake_ipc, fake_nccl, pretended_gpu

import shardkit as sk
from shardkit import DeviceError, run_ranks
from shardkit.testing.array import Device, registry
from shardkit.testing.gpu import (
    RankPlace,
    choose,
    choose_here,
    choose_planned,
    gpu_transports,
    open_nccl,
)

QUICKEST = ("nccl", "ipc", "mpi", "staged")


def places(num_nodes, ranks, gpus, *, threads=False):
    return [
        RankPlace(f"node{node}", 0 if threads else rank, f"GPU {rank % gpus} of node{node}")
        for node in range(num_nodes)
        for rank in range(ranks)
    ]


def rules_out(name, where):
    """The definition: whether the places alone rule a way out."""
    if name == "nccl":
        gpus = [place.gpu for place in where]
        return None in gpus or len(set(gpus)) < len(gpus)
    if name == "ipc":
        hosts, processes = zip(*((place.host, place.process) for place in where))
        return len(set(hosts)) > 1 or len(set(processes)) < len(where)
    return False


@pytest.mark.parametrize(
    "where",
    [
        places(1, 4, 4),
        places(1, 4, 2),
        places(2, 2, 2),
        places(2, 4, 2),
        places(1, 2, 2, threads=True),
        [*places(1, 2, 2)[:1], RankPlace("node0", 1, None)],
    ],
    ids=str,
)
def test_the_quickest_way_that_nothing_rules_out_is_taken_and_the_best_missed_is_named(where):
    for works in product((True, False), repeat=3):
        tried = []

        def way(name, goes, tried=tried):
            return lambda: tried.append(name) or ("" if goes else f"no {name} here")

        choice = choose(where, {name: way(name, goes) for name, goes in zip(QUICKEST, works)})
        able = [name for name, goes in zip(QUICKEST, works) if goes and not rules_out(name, where)]
        wanted = (*able, "staged")[0]
        assert choice.name == wanted
        assert bool(choice.missed) == (wanted != "nccl")
        before = QUICKEST[: QUICKEST.index(wanted) + 1]
        assert tried == [n for n in before if n != "staged" and not rules_out(n, where)]
        if not rules_out("nccl", where) and wanted != "nccl":
            assert choice.missed == "NCCL, but no nccl here"


def test_plans_decide_as_ranks_do_where_all_libraries_are_there():
    assert choose_planned(2, 4, 4).name == "nccl"
    assert str(choose_planned(1, 4, 2)) == (
        'gpu_transport "ipc": CUDA IPC, since the ranks of one node read each other\'s GPU memory; '
        "quicker would be NCCL, but ranks 0, 2 share GPU 0 on node 0; start as many ranks per node "
        "as there are GPUs"
    )
    assert choose_planned(4, 8, 4).name == "mpi"


def trained_by_default(num_devices, *, nccl=True):
    """(the transport of the data axis, what rank 0 said, losses) of two ranks."""
    said = []

    def work(backend):
        backend.say = said.append
        model, losses = train("FSDP", backend, 2, device="cuda", micro_batch=3)
        kind = type(model.mesh.group("data").gpu_transport).__name__
        model.mesh.close()
        return kind, losses

    with pretended_gpu(num_devices=num_devices), fake_ipc.installed():
        if nccl:
            with fake_nccl.installed():
                results = run_ranks(2, work, timeout=500)
        else:
            results = run_ranks(2, work, timeout=500)
    assert results[0][1] == results[1][1]
    return results[0][0], said, results[0][1]


@pytest.fixture
def twins(monkeypatch):
    masks = registry.KERNELS["dropout_mask"]
    monkeypatch.setattr(masks, "cuda", masks.reference)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("num_devices, has_nccl", [(2, True), (1, True), (2, False)])
def test_a_run_says_once_which_way_its_arrays_go(twins, num_devices, has_nccl):
    kind, said, _ = trained_by_default(num_devices, nccl=has_nccl)
    assert kind == ("NcclTransport" if has_nccl and num_devices == 2 else "NoneType")
    (line,) = said
    if kind == "NcclTransport":
        assert line == 'gpu_transport "nccl": NCCL, since each rank has a GPU of its own'
    elif has_nccl:
        assert line.startswith('gpu_transport "staged"') and "ranks 0, 1 share GPU" in line
    else:
        assert "quicker would be NCCL, but rank 0: CuPy finds no NCCL" in line


def test_ranks_that_are_processes_of_a_node_read_each_others_memory(monkeypatch):
    """Threads stand for them."""

    def work(backend):
        return choose_here(backend)

    with pretended_gpu(), fake_ipc.installed(), fake_nccl.installed():
        assert run_ranks(2, work)[0].name == "staged"
        own = gpu_transports.own_place
        monkeypatch.setattr(
            gpu_transports,
            "own_place",
            lambda rank: RankPlace(own(rank).host, rank, own(rank).gpu),
        )
        found = run_ranks(2, work)
    assert [choice.name for choice in found] == ["ipc"] * 2 and found[0] == found[1]
    assert f"share GPU 0000:01:00.0 on {platform.node()}" in found[0].missed
    with pretended_gpu(), fake_ipc.installed(refuses=True), fake_nccl.installed():
        assert run_ranks(2, work)[0].name == "staged"


def test_ranks_without_gpus_and_one_rank_alone_need_no_choice():
    def work(backend):
        model, losses = train("FSDP", backend, 1, micro_batch=3)
        model.mesh.close()
        return losses

    run_ranks(2, work)
    assert sk.ShardingConfiguration(object()).gpu_transport == "auto"
    with pretended_gpu():
        said = []

        def alone(backend):
            backend.say = said.append
            sk.DDPModel(
                sk.models.MLP([2, 2], seed=3), sk.ShardingConfiguration(backend, device="cuda")
            ).close()

        run_ranks(1, alone)
    assert not said


# ---- clear words ---------------------------------------------------------------------------------


def test_cupy_for_rocm_is_refused_with_what_would_be_needed():
    with pretended_gpu():
        runtime = sys.modules["cupy.cuda.runtime"]
        try:
            runtime.is_hip = True
            with pytest.raises(DeviceError, match='for ROCm.*ported.*warps of 64.*device "cpu"'):
                Device("cuda")
        finally:
            runtime.is_hip = False


@pytest.mark.parametrize("cuda", [12, 13])
@pytest.mark.parametrize("how", ["not there", "not found"])
def test_missing_nccl_advises_the_package_that_holds_it(monkeypatch, cuda, how):
    """CuPy's module of the library can be imported without it."""

    def work(backend):
        with pytest.raises(DeviceError) as caught:
            open_nccl(backend, [backend], fixed_order=True)
        return str(caught.value)

    with pretended_gpu(num_devices=2):
        monkeypatch.setattr(
            sys.modules["cupy.cuda.runtime"], "runtimeGetVersion", lambda: 1000 * cuda
        )
        if how == "not found":
            with fake_nccl.installed() as nccl:
                monkeypatch.setattr(nccl, "available", False)
                words = run_ranks(2, work)
        else:
            words = run_ranks(2, work)
    assert words[0] == words[1]
    assert f'pip install "nvidia-nccl-cu{cuda}", which is in "shardkit[cuda{cuda}]"' in words[0]
    assert ("libnccl.so.2 is not found" in words[0]) == (how == "not found")
