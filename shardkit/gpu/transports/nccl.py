r"""Transport through NCCL: collectives between GPUs without the host, for one GPU per rank.

    kernels      ...  array --+-- other kernels ------------+-- kernels that use the array
                              | event                       | event, put there by wait()
    the stream                +-- send, receive, add in tree order

The host waits for nothing: wait() holds back later work of the GPU (device.StreamHandle), so that
messages and kernels run beside each other. Where it waits for the GPU later, calls.py watches.

NCCL adds in an order of its own. Where sums are to be in the order of the tree (ordered.py), and
for half floats, which are added as float32, the slices are sent to their owners, who add them on
the GPU; NCCL's reductions do the rest. NCCL has no tags: messages between two ranks, which may come
in any order, are staged; those of a pipeline have lanes (lanes.py).
Source: NCCL user guide, "Group Calls", "Point-to-point communication"; bindings: docs.cupy.dev,
cupy.cuda.nccl.
"""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter

from ...comm.operations import ReductionOperation
from ...comm.wire import HALF_FLOATS
from ...errors import DeviceError
from .calls import NcclCalls, nccl_errors
from .device import CollectiveStream, GpuSeat, gpu_seat, nccl_module, shared_text
from .lanes import NcclLanes
from .levels import address_of, span_of
from .swaps import SwapTransport, spans

SUM = ReductionOperation.SUM
# In one call: some versions of CuPy take the count of a broadcast as a C int.
BROADCAST_BYTES = 1 << 30
_MOVES = ("broadcast", "all_gather", "iall_gather", "all_to_all")
_REDUCTIONS = ("all_reduce", "iall_reduce", "reduce_scatter", "ireduce_scatter")
_TYPES = {
    name: f"NCCL_{name.upper()}"
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64")
}
_OPERATIONS = {
    SUM: "NCCL_SUM",
    ReductionOperation.PRODUCT: "NCCL_PROD",
    ReductionOperation.MIN: "NCCL_MIN",
    ReductionOperation.MAX: "NCCL_MAX",
}


def open_nccl(
    world, groups, *, fixed_order: bool, axes: Mapping[str, str] = {}, messages: Sequence = ()
) -> None:
    """Give these groups, which are split from the world, the transport through NCCL. Collective.

    Over the world.
    messages      groups that get lanes for messages
    fixed_order   sums of floats are added as the tree over ranks, not in NCCL's order
    axes          {key of a group: its axis}, for reports
    Errors, on all ranks: DeviceError where a rank has no GPU or no NCCL, or two ranks have one GPU.
    """
    module, problem = None, ""
    try:
        seat = gpu_seat(world.local_rank)
        module = nccl_module()
    except DeviceError as error:
        seat, problem = None, str(error)
    answers = world.all_gather_object((seat, problem))
    _check_seats(answers)
    host = answers[world.rank][0].host
    for group in messages:
        if group.world_size > 1:
            axis = axes.get(group.group_key, group.group_key)
            group.use_gpu_transport(NcclLanes(group, module, axis))
    for group in groups:
        if group.world_size > 1:
            axis = axes.get(group.group_key, group.group_key)
            how = {"fixed_order": fixed_order, "axis": axis, "host": host}
            group.use_gpu_transport(NcclTransport(group, module, **how))


def _check_seats(answers: list[tuple[GpuSeat | None, str]]) -> None:
    """Refuse ranks that have no NCCL or no GPU of their own.

    Errors: DeviceError, the same on all ranks.
    """
    for rank, (_, problem) in enumerate(answers):
        if problem:
            raise DeviceError(
                f'gpu_transport "nccl" cannot be used: rank {rank}: {problem}; or set '
                'gpu_transport to "staged"'
            )
    shared = shared_text([seat.place for seat, _ in answers])
    if shared:
        raise DeviceError(
            f"NCCL wants a GPU for each rank, but {shared}, or set gpu_transport to "
            '"auto", "staged" or "ipc"'
        )


class NcclTransport(SwapTransport):
    """One rank's end. Making one, and every method, is collective over the group.

    axis   of the group, for reports; host: the node of this rank
    """

    def __init__(self, group, module, *, fixed_order: bool, axis: str, host: str = ""):
        super().__init__(group, group.all_gather_object(host))
        self._module, self._fixed_order = module, fixed_order
        self._stream, self._axis = CollectiveStream(), axis
        self._calls = NcclCalls.of(group, module.NcclError, self._stream.select_gpu)
        unique_id = group.broadcast_object(module.get_unique_id() if group.rank == 0 else None)
        with group.verb("connect NCCL"), self._errors("connect"):
            self._communicator = module.NcclCommunicator(group.world_size, unique_id, group.rank)
        self._calls.open(self._communicator)

    def takes(self, verb, num_bytes, dtype, op):
        return (
            verb in _MOVES
            or verb in _REDUCTIONS
            and (self._is_native(dtype, op) or self._is_tree(dtype, op))
        )

    def adds_in_tree_order(self, num_bytes, dtype):
        return self._is_tree(dtype, SUM) or dtype.kind in "iu" and self._is_native(dtype, SUM)

    def _is_native(self, dtype, op):
        """Return True if NCCL's own reduction will do."""
        is_exact = dtype.kind in "iu" or op is not SUM and op is not ReductionOperation.PRODUCT
        return dtype.name in _TYPES and op in _OPERATIONS and (is_exact or not self._fixed_order)

    def _is_tree(self, dtype, op):
        return op is SUM and (
            dtype.name in HALF_FLOATS
            or self._fixed_order
            and dtype.name in _TYPES
            and dtype.kind == "f"
        )

    # ---- what moves: bytes -----------------------------------------------------------------------

    def broadcast(self, port, root):
        for start in range(0, port.num_bytes, BROADCAST_BYTES):
            at = port.address + start
            size = min(BROADCAST_BYTES, port.num_bytes - start)
            self._communicator.broadcast(
                at, at, size, self._module.NCCL_UINT8, root, self._stream.address
            )

    def _gather(self, own, whole, counts):
        if len(set(counts)) > 1:
            return super()._gather(own, whole, counts)
        (source, num_bytes), target = span_of(own), address_of(whole)
        self._communicator.allGather(
            source, target, num_bytes, self._module.NCCL_UINT8, self._stream.address
        )

    def _swap(self, outgoing, incoming):
        me = self._group.rank
        self._stream.copy(incoming[me][0], *outgoing[me])
        with self._together():
            for rank, ((source, sent), (target, received)) in enumerate(zip(outgoing, incoming)):
                if rank != me and sent:
                    self._communicator.send(
                        source, sent, self._module.NCCL_UINT8, rank, self._stream.address
                    )
                if rank != me and received:
                    self._communicator.recv(
                        target, received, self._module.NCCL_UINT8, rank, self._stream.address
                    )

    # ---- what NCCL adds --------------------------------------------------------------------------

    def all_reduce(self, port, op):
        if not self._is_native(port.dtype, op):
            return super().all_reduce(port, op)
        at, how = port.address, self._codes(port.dtype, op)
        self._communicator.allReduce(at, at, port.size, *how, self._stream.address)

    def reduce_scatter(self, whole, own, op):
        if not self._is_native(own.port.dtype, op):
            return super().reduce_scatter(whole, own, op)
        into, how = own.port, self._codes(own.port.dtype, op)
        if len(set(whole.counts)) == 1:
            return self._communicator.reduceScatter(
                whole.port.address, into.address, into.size, *how, self._stream.address
            )
        with self._together():
            for owner, ((address, num_bytes), count) in enumerate(zip(spans(whole), whole.counts)):
                if num_bytes:
                    self._communicator.reduce(
                        address, into.address, count, *how, owner, self._stream.address
                    )

    def _codes(self, dtype, op):
        return getattr(self._module, _TYPES[dtype.name]), getattr(self._module, _OPERATIONS[op])

    # ---- order, errors, the end ------------------------------------------------------------------

    def _flat(self, port):
        return self._stream.flat(port)

    @contextmanager
    def _work(self, verb, *ports):
        self._stream.follow(*ports)
        with self._errors(verb), self._stream.current():
            yield

    @contextmanager
    def _together(self):
        """Group sends and receives that only complete together."""
        self._module.groupStart()
        try:
            yield
        finally:
            self._module.groupEnd()

    def _errors(self, verb):
        return nccl_errors(self._module, self._group.group_key, verb)

    def _handle(self, *ports):
        end = self._stream.end()
        self._calls.note(max(ports, key=attrgetter("size")), self._axis, end)
        return self._stream.handle(end, ports)

    def close(self):
        """Close the transport. Collective over the group."""
        with self._errors("close"):
            self._calls.close(self._communicator)
