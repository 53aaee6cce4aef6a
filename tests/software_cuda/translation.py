"""From the text of PTX to a library with a launcher for each of its kernels."""

from pathlib import Path

from stand_in.emulator.module import compiled_cpp

from .instructions import Words, as_cpp, register
from .program import Function, Instruction, Kernel, Label, Program, Registers, Variable, parsed

HEADER = Path(__file__).with_name("ptx.h")
FLAGS = ("-fwrapv", "-O0", "-fno-sanitize=all")  # PTX is optimized already, and checks its accesses
LINES = 1_000_000  # more than a function has
WORDS = {1: "bool", **{bits: f"uint{bits}_t" for bits in (8, 16, 32, 64)}}


def translated(ptx: str) -> tuple[Path, list[str]]:
    """Return the library, made now or before, and the names of its kernels.

    Errors: EmulationError where there is no g++; Unknown.
    """
    program = parsed(ptx)
    names = [kernel.name for kernel in program.kernels]
    return compiled_cpp(as_cpp_program(program), *FLAGS, header=HEADER), names


def as_cpp_program(program: Program) -> str:
    """Return C++ with a launcher for each kernel, named launch_ and its name."""
    stored = [each for each in program.variables if each.space in ("global", "const")]
    functions = [_function(each, number, program) for number, each in enumerate(program.functions)]
    parts = [
        *map(_variable, stored),
        _known(stored),
        *[f"{_head(each)};" for each in program.functions],
        *functions,
        *[_kernel(each, program) for each in program.kernels],
    ]
    return f'#include "{HEADER.name}"\nnamespace emulator {{\n' + "\n".join(parts) + "\n}\n"


def _variable(variable: Variable, storage: str = "static") -> str:
    values = ", ".join(Words({}, {}).word(each) for each in variable.values)
    written = f" = {{{values}}}" if values or storage else ""
    kind = f"alignas({variable.align}) {storage} {WORDS[variable.bits]}"
    return f"{kind} {register(variable.name)}[{variable.count}]{written};"


def _known(variables: list[Variable]) -> str:
    """Return what tells the checks of accesses where these are."""
    names = [register(each.name) for each in variables]
    spans = ", ".join(f"{{(uint64_t){name}, (uint64_t){name} + sizeof {name}}}" for name in names)
    told = f"(own_arrays = arrays_of_the_program, num_own = {len(names)}, true)"
    return (
        f"static const Known arrays_of_the_program[] = {{{spans or '{}'}}};\n"
        f"static const bool is_told = {told};"
    )


def _head(function: Function) -> str:
    return f"static void function_{register(function.name)}(char* result, const char** given)"


def _function(function: Function, number: int, program: Program) -> str:
    places = {name: f"given[{place}]" for place, name in enumerate(function.parameters)}
    places[function.result] = "result"
    lines = _lines(function.statements, places, program, (number + 1) * LINES)
    return f"{_head(function)} {{\n{lines}\n}}"


def _kernel(kernel: Kernel, program: Program) -> str:
    wanted = ", ".join(
        f"{{{offset}, {num_bytes}}}" for offset, num_bytes in kernel.parameters.values()
    )
    places = {name: f"(parameters + {offset})" for name, (offset, _) in kernel.parameters.items()}
    shared_bytes = sum(each.num_bytes for each in _shared_in(kernel.statements, program))
    return f"""
static void body_{kernel.name}(void* block) {{
    const char* parameters = (const char*)block;
{_lines(kernel.statements, places, program)}
}}
static const Parameter wanted_{kernel.name}[] = {{{wanted or "{}"}}};
extern "C" __attribute__((visibility("default"))) const Facts facts_{kernel.name} = {{
    {len(kernel.parameters)}, wanted_{kernel.name}, {shared_bytes}, {kernel.most_threads}}};
extern "C" __attribute__((visibility("default")))
void launch_{kernel.name}(void** values, const unsigned* bytes, unsigned count,
    const unsigned* sizes, unsigned shared, unsigned limit, int order, char* error) {{
    launch_ptx(body_{kernel.name}, facts_{kernel.name}, values, bytes, count, sizes, shared, limit,
               order, error);
}}"""


def _lines(statements: list, places: dict[str, str], program: Program, first_line: int = 0) -> str:
    """Return the statements in C++; places: {parameter: its address}."""
    own = [each for each in statements if isinstance(each, Variable)]
    passed = [each.name for each in own if each.space == "param"]
    places = places | {name: f"(char*){register(name)}" for name in passed}
    variables = [each for each in [*program.variables, *own] if each.name not in places]
    words = Words({each.name: _address(each) for each in variables}, places)
    lines = ["uint64_t carry = 0;"]
    lines += [_shared(each) for each in _shared_in(statements, program)]
    lines += [_statement(each, line, words) for line, each in enumerate(statements, first_line)]
    return "\n".join(lines)


def _shared_in(statements: list, program: Program) -> list[Variable]:
    """Return the arrays of shared memory of a kernel, but the one that a launch gives."""
    own = [each for each in statements if isinstance(each, Variable)]
    return [each for each in [*program.variables, *own] if each.space == "shared" and each.count]


def _address(variable: Variable) -> str:
    if variable.space in ("global", "const", "local"):
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
    if isinstance(statement, Variable):
        is_here = statement.space in ("local", "param")
        return _variable(statement, "") if is_here else ""
    return statement
