"""Stands for the calls of the CUDA runtime that share GPU memory between processes, for ranks that
are threads.

    with pretended_gpu(), fake_ipc.installed() as opened:
        run_ranks(2, ...)
    assert not opened                   # addresses that somebody has open

Only whole allocations can be shared, and what somebody has open must not be freed: both are
mistakes of the stand-in's machine.
"""

import sys
from contextlib import contextmanager
from functools import wraps


@contextmanager
def installed(*, refuses: bool = False, wrong_memory: bool = False):
    """cupy.cuda.runtime has the calls; refuses: as between containers; wrong_memory: a handle leads
    to other memory.
    """
    runtime = sys.modules["cupy.cuda.runtime"]
    machine, free, opened = runtime.machine, runtime.free, []
    decoy = runtime.malloc(1 << 16) if wrong_memory else 0

    def ipcGetMemHandle(devPtr):
        allocation = machine.find(devPtr)
        if allocation is None or allocation.address != devPtr:
            machine.mistake("a handle of an address that is not the beginning of an allocation")
        return devPtr.to_bytes(8, "little") * 8

    def ipcOpenMemHandle(handle, flags=1):
        assert isinstance(handle, bytes) and len(handle) == 64
        if refuses:
            raise runtime.CUDARuntimeError(1)
        opened.append(decoy or int.from_bytes(handle[:8], "little"))
        return opened[-1]

    def ipcCloseMemHandle(devPtr):
        opened.remove(devPtr)

    @wraps(free)
    def free_checked(ptr):
        if ptr in opened:
            machine.mistake("freed while another process has it open")
        free(ptr)

    added = {
        "ipcGetMemHandle": ipcGetMemHandle,
        "ipcOpenMemHandle": ipcOpenMemHandle,
        "ipcCloseMemHandle": ipcCloseMemHandle,
        "free": free_checked,
    }
    before = {name: getattr(runtime, name) for name in added if hasattr(runtime, name)}
    vars(runtime).update(added)
    try:
        yield opened
    finally:
        for name in added:
            delattr(runtime, name)
        vars(runtime).update(before)
        if decoy:
            free(decoy)
