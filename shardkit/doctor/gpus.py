"""GPUs: which rank has which GPU, and which transports work between them (gpu_transport)."""

from ..comm.backend import CommunicationBackend
from ..comm.gpu.device import GpuSeat, gpu_seat, nccl_version
from ..comm.gpu.ipc import why_no_ipc
from ..comm.gpu.probe import agreed_verdict
from ..comm.seats import ranks_text
from ..environment import visible_gpus
from ..errors import DeviceError
from .finding import Finding, ok, warning

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
        return [ok("GPU", f"none, so device is cpu: {answers[0][1]}")]
    if blind:
        return [
            warning(
                "GPU",
                f"ranks {ranks_text(blind)} see no GPU, others do: {answers[blind[0]][1]}",
                "ask for GPUs on every node",
            )
        ]
    places = [
        _line(place, ranks, seats[ranks[0]], answers)
        for place, ranks in _ranks_by_gpu(seats).items()
    ]
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


def _line(place: str, ranks: list[int], seat: GpuSeat, answers) -> Finding:
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
        return [ok("GPU", text)]
    text += f", {len(shared)} of which several ranks share"
    return [warning("GPU", text, shared[0].advice)]


def _check_transports(backend, seats: dict[int, GpuSeat]) -> list[Finding]:
    """Report the transports beside "staged", which always works. Collective."""
    verdict = agreed_verdict(backend)
    return [
        ok("GPU-MPI", f"MPI takes GPU memory: {verdict}"),
        ok("GPU-IPC", _ipc_text(backend, seats)),
        ok("NCCL", _nccl_text(backend, seats)),
    ]


def _ipc_text(backend, seats) -> str:
    hosts = sorted({seat.host for seat in seats.values()})
    group = backend.split(hosts.index(seats[backend.rank].host))
    problem = "" if group.world_size == 1 else why_no_ipc(group)
    group.close()
    problems = [problem for problem in backend.all_gather_object(problem) if problem]
    if len(hosts) == backend.world_size:
        return "one rank on each node: GPU memory is not shared"
    if problems:
        return f"no: {problems[0]}"
    return "yes, ranks of a node read each other's GPU memory: gpu_transport ipc"


def _nccl_text(backend, seats) -> str:
    try:
        version, problem = nccl_version(), ""
    except DeviceError as error:
        version, problem = "", str(error)
    problems = [problem for problem in backend.all_gather_object(problem) if problem]
    if problems:
        return f"no: {problems[0]}"
    if len(_ranks_by_gpu(seats)) < len(seats):
        return f"no: version {version} wants a GPU for each rank"
    return f"yes, version {version}: gpu_transport nccl"
