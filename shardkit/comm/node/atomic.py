"""Values that several processes write and read in shared memory, and how to wait for a change.

    load, store        64-bit integers; a store comes after everything before it, a load before
                       everything after it
    wake, doze         a rank that has waited long sleeps in the kernel until the value changes

For loops compiled by Numba, which see memory as addresses (int64, in this process): arrays made in
a loop would cost more to compile than all the rest.
Source: futex(2); "Futexes Are Tricky", U. Drepper, 2011.
"""

import platform

from ...array.cpu.notation import cgutils, external, inlined_once, intrinsic, ir, types
from .mailbox import NAP, SLEEPERS, WORD_BYTES

# Number of the system call.
_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}.get(platform.machine(), -1)
_WAIT = 0
_WAKE = 1
_EVERYBODY = 2**31 - 1
_PAUSE = "llvm.x86.sse2.pause" if platform.machine() == "x86_64" else None

yield_core = external("sched_yield", "int32")
move_bytes = external("memcpy", "int64", *["int64"] * 3)
_system_call = external("syscall", "int64", *["int64"] * 7)


@intrinsic
def load(typing, address):
    """Return the 8 bytes at the address; what follows in the program happens later."""

    def build(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", WORD_BYTES)

    return types.int64(types.int64), build


@intrinsic
def store(typing, address, word):
    """Set the 8 bytes at the address; what precedes in the program happens earlier."""

    def build(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), build


@intrinsic
def fence(typing):
    """Order memory: all ranks see the stores before it before the loads after it."""

    def build(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), build


@intrinsic
def relax(typing):
    """Hint to the processor that this is a spin."""

    def build(context, builder, signature, arguments):
        if _PAUSE is not None:
            builder.call(
                cgutils.get_or_insert_function(
                    builder.module, ir.FunctionType(ir.VoidType(), []), _PAUSE
                ),
                [],
            )
        return context.get_dummy_value()

    return types.void(), build


@intrinsic
def address_of(typing, array):
    """Return the address of the first element."""

    def build(context, builder, signature, arguments):
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(made.data, ir.IntType(64))

    return types.int64(array), build


@inlined_once
def wake(address):
    """Wake ranks that doze until this value changes; it has changed."""
    fence()
    if load(address + SLEEPERS) != 0:
        store(address + SLEEPERS, 0)
        if _FUTEX >= 0:
            _system_call(_FUTEX, address, _WAKE, _EVERYBODY, 0, 0, 0)


@inlined_once
def doze(address, number):
    """Sleep while the value is below the number, at most for the time in NAP."""
    store(address + SLEEPERS, 1)
    fence()
    seen = load(address)
    if seen < number:
        if _FUTEX >= 0:
            _system_call(_FUTEX, address, _WAIT, seen & 0xFFFFFFFF, address + NAP, 0, 0)
        else:
            yield_core()
