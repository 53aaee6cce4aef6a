"""From CUDA C++ through the PTX of NVRTC to functions that run on host memory."""

import contextlib
import ctypes
import functools
from pathlib import Path
from unittest import mock

import nvrtc
import stand_in.emulator
from stand_in.emulator import EmulatedModule, EmulationError
from stand_in.emulator.module import EmulatedFunction, compiled_cpp

from shardkit.testing.array import cuda_launch

from .instructions import Unknown, Words, as_cpp, register
from .program import Instruction, Kernel, Label, Program, Registers, Variable, parsed

HEADER = Path(__file__).with_name("ptx.h")
FLAGS = ("-fwrapv", "-O0", "-fno-sanitize=all")  # PTX is optimized already, and checks its accesses
WORDS = {1: "bool", **{bits: f"uint{bits}_t" for bits in (8, 16, 32, 64)}}


class PtxModule(EmulatedModule):
    """The kernels of a source, for GPUs of this architecture ("90" for sm_90).

    Errors: EmulationError where there is no g++, on what NVRTC refuses, and on instructions that
    are not known here.
    """

    def __init__(self, source: str, options: tuple[str, ...] = (), arch: str = "90"):
        try:
            program = parsed(nvrtc.ptx(source, options, arch))
            text = _program(program)
        except (RuntimeError, Unknown) as error:
            raise EmulationError(f"PTX of sm_{arch}: {error}") from None
        self.names = [kernel.name for kernel in program.kernels]
        self._library = ctypes.CDLL(str(compiled_cpp(text, *FLAGS)))

    def function(self, name):
        """The kernel of this name; EmulationError if there is none."""
        super().function(name)
        return PtxFunction(name, getattr(self._library, f"launch_{name}"), self._library)


class PtxFunction(EmulatedFunction):
    """A kernel, which may touch the arrays that it is given and no others."""

    def __init__(self, name, launch, library):
        super().__init__(name, launch)
        self._library = library

    def __call__(self, grid, block, args, shared_mem=0, memory=()):
        """Run it; an access outside of `memory` is an error, if there is any."""
        places = [(array.ctypes.data, array.nbytes) for array in memory]
        ends = [end for address, num_bytes in places for end in (address, address + num_bytes)]
        arrays = (ctypes.c_uint64 * len(ends))(*ends)
        self._library.arrays_of_the_next_launch(arrays, len(memory))
        super().__call__(grid, block, args, shared_mem)


@contextlib.contextmanager
def running_ptx(arch: str):
    """Inside, the kernels of the stand-in for CuPy are PTX of this architecture."""
    cuda_launch._function.cache_clear()
    with mock.patch.object(
        stand_in.emulator, "EmulatedModule", functools.partial(PtxModule, arch=arch)
    ):
        try:
            yield
        finally:
            cuda_launch._function.cache_clear()


def _program(program: Program) -> str:
    """Return C++ with a launcher for each kernel, named launch_ and its name."""
    variables = "\n".join(_variable(each) for each in program.variables if each.space == "global")
    kernels = "\n".join(_kernel(each, program) for each in program.kernels)
    words = f'#include "cuda_on_host.h"\n{HEADER.read_text()}'
    return f"{words}\nnamespace emulator {{\n{variables}\n{kernels}\n}}\n"


def _variable(variable: Variable) -> str:
    values = ", ".join(Words({}, {}).word(each) for each in variable.values) or "0"
    kind = f"alignas({variable.align}) static {WORDS[variable.bits]}"
    return f"{kind} {register(variable.name)}[{variable.count}] = {{{values}}};"


def _kernel(kernel: Kernel, program: Program) -> str:
    own = [each for each in kernel.statements if isinstance(each, Variable)]
    addresses = {each.name: _address(each) for each in [*program.variables, *own]}
    words = Words(addresses, kernel.parameters)
    shared = [each for each in [*program.variables, *own] if each.space == "shared" and each.count]
    lines = [*map(_shared, shared)]
    lines += [_statement(each, line, words) for line, each in enumerate(kernel.statements)]
    wanted = ", ".join(
        f"{{{offset}, {num_bytes}}}" for offset, num_bytes in kernel.parameters.values()
    )
    body = "\n".join(lines)
    return f"""
static void body_{kernel.name}(void* block) {{
    const char* parameters = (const char*)block;
{body}
}}
extern "C" __attribute__((visibility("default")))
void launch_{kernel.name}(void** values, const unsigned* bytes, unsigned count,
    const unsigned* sizes, unsigned shared, unsigned limit, int order, char* error) {{
    static const Parameter wanted[] = {{{wanted or "{}"}}};
    launch_ptx(body_{kernel.name}, wanted, {len(kernel.parameters)}, values, bytes, count,
               sizes, shared, limit, order, error);
}}"""


def _address(variable: Variable) -> str:
    if variable.space == "global":
        return f"(uint64_t){register(variable.name)}"
    if variable.count is None:
        return "machine->arrays[0].offset"
    return register(variable.name)


def _shared(variable: Variable) -> str:
    """Return the statement that takes an array of shared memory, the same for all threads."""
    name = register(variable.name)
    return (
        f"static const char key_{name} = 0; "
        f"uint64_t {name} = take_shared(&key_{name}, {variable.num_bytes}) - machine->shared;"
    )


def _statement(statement, line: int, words: Words) -> str:
    if isinstance(statement, Instruction):
        return as_cpp(statement, line, words)
    if isinstance(statement, Label):
        return f"{register(statement.name)}:;"
    if isinstance(statement, Registers):
        return f"{WORDS[statement.bits]} {', '.join(map(register, statement.names))};"
    return "" if isinstance(statement, Variable) else statement
