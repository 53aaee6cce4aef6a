"""The one way into `shardkit/gpu`, the room of all that is for GPUs alone.

    who asks, where a GPU's array or device has come    what it gets
    array/registry.py     a kernel of CuPy arrays        kernels.<file of the definition>
    array/products.py     a product of CuPy arrays       products.product
    array/device.py       CuPy, GPU memory, copies       library, memory, copies
    nn/transformer.py     several products at once       joint
    comm/mesh.py          a transport by its name        transports.opening
    comm/ports.py         an array in a verb             transports.ports
    comm/staging.py       copies of messages             transports.device
    parallel/step/        compile()                      step.graphs

The room stands on these, so none of them imports it. They ask here by a text at the first array of
a GPU: a run on NumPy imports nothing of it (tests/pure/test_gpu_room.py).
"""

from functools import cache
from importlib import import_module
from types import ModuleType


@cache
def gpu_part(name: str) -> ModuleType:
    """Return this module of `shardkit/gpu`, "transports.ports" for example."""
    return import_module(f"{__package__}.gpu.{name}")
