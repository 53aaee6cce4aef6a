"""Whether steps are captured as CUDA graphs and replayed, which model.compile() asks for; what does
it is in gpu/step, for GPUs alone.
"""

from typing import Any

from ...comm.mesh import Mesh
from ...errors import ShardingError
from ...nn.module import Module
from ...on_gpu import gpu_part
from ..data.site import Pools


class Compilation:
    """Whether the steps of one model are replayed, and if not, why.

    runtime   what runs them: the plain one, or CUDA graphs around it
    """

    def __init__(self, runtime, pools: Pools, mesh: Mesh, model: Module, owners):
        self.runtime = runtime
        self._pools = pools
        self._world = mesh.world
        self._model = model
        self._graphs: Any = None
        self._obstacle = _obstacle(pools.device, mesh, model, runtime.flow.plain_work, owners)

    def start(self) -> None:
        """Capture steps that are alike as CUDA graphs, and replay them from then on.

        Errors, on all ranks: ShardingError if `reason` says why not.
        """
        if self.reason is not None:
            raise ShardingError(
                f"this model cannot be compiled: {self.reason}; train it without compile()"
            )
        if self._graphs is None:
            graphs = gpu_part("step.graphs").CudaGraphs
            self._graphs = graphs(self.runtime, self._pools, self._world, self._model)
            self.runtime = self._graphs

    @property
    def reason(self) -> str | None:
        """Why steps cannot be captured, or why none is replayed any more; None if all is well."""
        return self._obstacle if self._graphs is None else self._graphs.reason

    @property
    def is_on(self) -> bool:
        """True if steps are captured and replayed."""
        return self._graphs is not None and self.reason is None

    def forget(self) -> None:
        """Release the memory of graphs."""
        if self._graphs is not None:
            self._graphs.forget()


def _obstacle(device, mesh, model, work, owners) -> str | None:
    """Return what is in the way of capturing steps; None if nothing is."""
    if owners:
        return "it has several objectives, and a graph holds the gradients of all parameters"
    if model.named_buffers():
        return "it has buffers, which may observe a forward pass, and a replayed graph has none"
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return (
            "some of its parameters are frozen, and a graph holds the places of trained ones alone"
        )
    if device.kind == "cpu":
        return (
            'it is on device "cpu", and compile() captures CUDA graphs, so it wants device = "cuda"'
        )
    if work.gathering.obstacle is not None:
        return work.gathering.obstacle
    if mesh.size("tensor") > 1:
        return (
            f"it has {mesh.size('tensor')} tensor ranks, and CUDA graphs cannot hold the "
            "messages of tensor parallelism, so they want tensor = 1"
        )
    return None
