"""GPUs: which rank has which GPU, and which transports work between them (gpu_transport)."""

from functools import partial

from ..comm.backend import CommunicationBackend
from ..comm.mpi.launch import find_mpiexec
from ..comm.ranks import ranks_text
from ..environment import mpich_gpu_support, visible_gpus
from ..errors import DeviceError
from ..files.programs import find_program
from ..gpu.transports.choice import agreed_problem, choose, mpi_problem, place_of
from ..gpu.transports.device import GpuSeat, gpu_seat, nccl_version
from ..gpu.transports.ipc import why_no_ipc
from ..gpu.transports.probe import agreed_verdict
from .finding import Finding, joined, ok, warning

_MOST_LINES = 16


def check_gpus(backend: CommunicationBackend) -> list[Finding]:
    """Report the ranks of each GPU, a line for each, and the transports between GPUs.

    Collective over the backend; rank 0 has all findings.
    """
    seat, problem = _own_seat(backend.local_rank)
    answers = backend.all_gather_object((seat, problem, backend.local_rank, visible_gpus()))
    seats = {rank: answer[0] for rank, answer in enumerate(answers) if answer[0] is not None}
    blind = [rank for rank in range(backend.world_size) if rank not in seats]
    if not seats:
        return ok("GPU", f"none, so device is cpu: {answers[0][1]}")
    if blind:
        return warning(
            "GPU",
            f"ranks {ranks_text(blind)} see no GPU, others do: {answers[blind[0]][1]}",
            "ask for GPUs on every node",
        )
    places = joined(
        _line(place, ranks, seats[ranks[0]], answers)
        for place, ranks in _ranks_by_gpu(seats).items()
    )
    return places[:_MOST_LINES] + _rest(places[_MOST_LINES:]) + _check_transports(backend, seats)


def _own_seat(local_rank: int) -> tuple[GpuSeat | None, str]:
    try:
        return gpu_seat(local_rank), ""
    except DeviceError as error:
        return None, str(error)


def _ranks_by_gpu(seats: dict[int, GpuSeat]) -> dict[str, list[int]]:
    """Return {GPU: its ranks}, in the order of the first rank of each."""
    places: dict[str, list[int]] = {}
    for rank, seat in seats.items():
        places.setdefault(seat.place, []).append(rank)
    return places


def _line(place: str, ranks: list[int], seat: GpuSeat, answers) -> list[Finding]:
    """Return the line of one GPU and its ranks."""
    local_ranks = ranks_text([answers[rank][2] for rank in ranks])
    visible = sorted({answers[rank][3] or "unset" for rank in ranks})
    text = (
        f"{seat.host}: GPU {seat.ordinal} of {seat.num_visible}, {seat.name} at {seat.bus}, "
        f"{seat.total_bytes / 2**30:.1f} GiB, {seat.free_bytes / 2**30:.1f} free: "
        f"rank {ranks_text(ranks)} (on its node {local_ranks}); "
        f"CUDA_VISIBLE_DEVICES {' or '.join(visible)}"
    )
    if len(ranks) > 1:
        return warning(
            "GPU",
            text,
            f"{len(ranks)} ranks share it and take turns; start as many ranks per node as there "
            "are GPUs",
        )
    return ok("GPU", text)


def _rest(findings: list[Finding]) -> list[Finding]:
    """Return one line instead of many; it warns if any of them does."""
    if not findings:
        return []
    shared = [finding for finding in findings if finding.level != "ok"]
    text = f"and {len(findings)} GPUs more"
    if not shared:
        return ok("GPU", text)
    text += f", {len(shared)} of which several ranks share"
    return warning("GPU", text, shared[0].advice)


def _check_transports(backend, seats: dict[int, GpuSeat]) -> list[Finding]:
    """Report the transports beside "staged", which always works, and which is taken. Collective."""
    places = backend.all_gather_object(place_of(seats[backend.rank]))
    verdict, nccl = agreed_verdict(backend), agreed_problem(backend, nccl_version)
    no_ipc = _why_no_ipc(backend, seats)
    problems = {"nccl": nccl, "ipc": no_ipc, "mpi": mpi_problem(verdict)}
    findings = _of_mpi(verdict) + ok("GPU-IPC", _ipc_text(no_ipc))
    findings += ok("NCCL", _nccl_text(nccl, seats))
    if backend.world_size > 1:
        tries = {name: partial(str, problem) for name, problem in problems.items()}
        findings += ok("GPU arrays", str(choose(places, tries)))
    return findings


def _of_mpi(verdict) -> list[Finding]:
    """Report what MPI does with GPU memory; a site may have to switch it on, or say it itself."""
    text = f"MPI takes GPU memory: {verdict}"
    if verdict.takes_anything:
        return ok("GPU-MPI", text)
    if mpich_gpu_support() != "1" and "MPICH_GPU_SUPPORT_ENABLED" in verdict.reason:
        advice = "load the site's module for its GPUs, and set MPICH_GPU_SUPPORT_ENABLED=1"
        return warning("GPU-MPI", text, advice)
    if find_mpiexec() is None and find_program("srun"):
        return warning(
            "GPU-MPI",
            f"{text}; this site starts ranks by srun alone",
            "set SHARDKIT_GPU_AWARE_MPI=yes if the site says that its MPI takes GPU memory",
        )
    return ok("GPU-MPI", text)


def _why_no_ipc(backend, seats) -> str:
    """Return why ranks of a node cannot read each other's GPU memory, the same on all."""
    hosts = sorted({seat.host for seat in seats.values()})
    group = backend.split(hosts.index(seats[backend.rank].host))
    problem = "" if group.world_size == 1 else why_no_ipc(group)
    group.close()
    problems = [problem for problem in backend.all_gather_object(problem) if problem]
    if len(hosts) == backend.world_size:
        return "one rank on each node: GPU memory is not shared"
    return problems[0] if problems else ""


def _ipc_text(problem: str) -> str:
    if problem:
        return f"no: {problem}"
    return "yes, ranks of a node read each other's GPU memory: gpu_transport ipc"


def _nccl_text(problem: str, seats) -> str:
    if problem:
        return f"no: {problem}"
    if len(_ranks_by_gpu(seats)) < len(seats):
        return f"no: version {nccl_version()} wants a GPU for each rank"
    return f"yes, version {nccl_version()}: gpu_transport nccl"
