"""The text of a PTX program as statements, by the chapter on syntax of the PTX ISA.

program = parsed(text)
program.kernels[0].statements[3]        Instruction("!%p1", ("bra",), ("$L__BB0_2",))
"""

import re
from dataclasses import dataclass, field
from math import prod

BITS = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "f16x2": 32, "bf16x2": 32, "f64": 64},
}
ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)([^{]*)\{", re.S)
FUNCTION = re.compile(r"\.func\s+(?:\(([^)]*)\)\s*)?([\w$]+)\s*\(([^)]*)\)[^;{}]*\{")
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)(?:\s+\.ptr[\s.\w]*?)?\s+([\w$]+)(?:\[(\d+)\])?\s*$"
)
VARIABLE = re.compile(
    r"\.(global|shared|local|const|param)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*(.+))?$",
    re.S,
)
MOST_THREADS = 1024
LABEL = re.compile(r"([\w$]+):(?!:)")


@dataclass(frozen=True)
class Instruction:
    """`@guard a.b.c operand, operand;`, where parts are ("a", "b", "c")."""

    guard: str
    parts: tuple[str, ...]
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    name: str


@dataclass(frozen=True)
class Registers:
    """Registers of one width: of a kernel, or of a block in braces."""

    bits: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Variable:
    """An array in some memory.

    count   None for dynamic shared memory
    values  as they are written
    """

    space: str
    align: int
    bits: int
    name: str
    count: int | None
    values: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        return (self.count or 0) * self.bits // 8


@dataclass
class Kernel:
    """parameters: {name: (offset, bytes)} in the block that a launch fills.

    most_threads   that a block may have
    """

    name: str
    parameters: dict[str, tuple[int, int]]
    most_threads: int
    statements: list = field(default_factory=list)


@dataclass
class Function:
    """What kernels call. result: the name of the parameter that it returns, or ""."""

    name: str
    result: str
    parameters: tuple[str, ...]
    statements: list = field(default_factory=list)


@dataclass
class Program:
    variables: list[Variable]
    kernels: list[Kernel]
    functions: list[Function]


def parsed(text: str) -> Program:
    """Return the program of a PTX text. Errors: ValueError on what is not known here."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text, functions = _without_functions(text)
    entries = list(ENTRY.finditer(text))
    head = text[: entries[0].start()] if entries else text
    found = [VARIABLE.search(each.strip()) for each in head.split(";")]
    program = Program([_variable(each) for each in found if each], [], functions)
    for entry in entries:
        kernel = Kernel(entry[1], _parameters(entry[2]), _most_threads(entry[3]))
        kernel.statements += _statements(_in_braces(text, entry.end()))
        program.kernels.append(kernel)
    return program


def _without_functions(text):
    """Return the rest of a PTX text, and its functions."""
    functions = []
    while match := FUNCTION.search(text):
        body = _in_braces(text, match.end())
        result, given = list(_parameters(match[1] or "")), _parameters(match[3])
        made = Function(match[2], result[0] if result else "", tuple(given))
        made.statements += _statements(body)
        functions.append(made)
        text = text[: match.start()] + text[match.end() + len(body) + 1 :]
    return re.sub(r"\.func[^;{}]*;", "", text), functions


def operands(text: str) -> tuple[str, ...]:
    """Return what commas outside of brackets part."""
    inside = r"(?:[^,\[{(]|\[[^\]]*\]|\{[^}]*\}|\([^)]*\))+"
    return tuple([each.strip() for each in re.findall(inside, text)])


def _in_braces(text, start):
    depth = 1
    for brace in re.compile("[{}]").finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : brace.start()]
    raise ValueError("the text of a kernel ends within braces")


def _parameters(text):
    offset, found = 0, {}
    for each in filter(str.strip, text.split(",")):
        align, kind, name, count = PARAMETER.search(each).groups()
        num_bytes = BITS[kind] // 8 * int(count or 1)
        step = int(align or num_bytes)
        offset = -(-offset // step) * step
        found[name] = offset, num_bytes
        offset += num_bytes
    return found


def _most_threads(directives):
    given = re.search(r"\.maxntid\s+([\d,\s]+)", directives)
    return prod(int(each) for each in given[1].split(",")) if given else MOST_THREADS


def _variable(match):
    space, align, kind, name, count, values = match.groups()
    num_elements = None if count == "" else int(count or 1)
    written = tuple(re.findall(r"[^\s,{}]+", values or ""))
    return Variable(space, int(align or BITS[kind] // 8), BITS[kind], name, num_elements, written)


def _statements(body):
    """Yield Instructions, Labels, Registers, Variables, and "{" and "}"."""
    at = 0
    while match := re.compile(r"\s*(?:([{};])|([\w$]+):(?!:)|([^;]+);)").match(body, at):
        at = match.end()
        brace, label, text = match.groups()
        if brace and brace != ";":
            yield brace
        elif label:
            yield Label(label)
        elif text and not text.startswith((".pragma", ".loc ", ".file")):
            yield _statement(" ".join(text.split()))


def _statement(text):
    if text.startswith(".reg"):
        kind, names = re.fullmatch(r"\.reg \.(\w+) (.+)", text).groups()
        return Registers(BITS[kind], tuple(_register_names(names)))
    if match := VARIABLE.match(text):
        return _variable(match)
    guard, opcode, rest = re.fullmatch(r"(?:@(!?%?\w+) )?([\w.:]+)(?: (.*))?", text).groups()
    return Instruction(guard or "", tuple(opcode.split(".")), operands(rest or ""))


def _register_names(text):
    """Yield %p1, %p2 for `%p<3>`, whose numbers begin at 1 where NVRTC writes them."""
    for name in text.split(","):
        many = re.fullmatch(r"(.+)<(\d+)>", name.strip())
        yield from (
            [f"{many[1]}{number}" for number in range(int(many[2]))] if many else [name.strip()]
        )
