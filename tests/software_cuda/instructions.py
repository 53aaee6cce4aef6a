"""Instructions of PTX as statements of C++, by the chapter of the PTX ISA on each; ptx.h has what
they call.

    as_cpp(Instruction("", ("add", "ftz", "f32"), ("%f1", "%f2", "%f3")), 7, names)
    -> "{ auto x = flushed(value_of<float>(r_f2)); ...; r_f1 = bits(flushed(float(x + y))); }"

Registers are unsigned numbers of their width; `value_of<T>` reads the low bits of one as a T.
"""

import re

from .program import BITS, Instruction, operands

SPECIAL = {
    f"%{name}.{axis}": f"machine->{field}.{axis}"
    for name, field in {
        "tid": "thread",
        "ntid": "block_size",
        "ctaid": "block",
        "nctaid": "grid_size",
    }.items()
    for axis in "xyz"
} | {"%laneid": "lane_number()"}
TYPES = {"pred": "bool", "f32": "float", "f64": "double"} | {
    f"{kind}{bits}": f"{word}int{bits}_t"
    for kind, word in (("s", ""), ("u", "u"), ("b", "u"))
    for bits in (8, 16, 32, 64)
}
FLOATS = ("f32", "f64")
HALVES = {"bf16": "bfloat", "f16": "half"}
CARRIED = ("addc", "subc", "madc")
SPACES = ("param", "global", "shared", "local", "const")
# {instruction: its value, of operands x, y and z in its type T}
VALUES = {
    "abs": "T(x < 0 || is_negative(x) ? -x : x)",
    "add": "x + y",
    "and": "x & y",
    "copysign": "std::copysign(y, x)",
    "div": "quotient(x, y)",
    "ex2": "std::exp2((double)x)",
    "fma": "std::fma(x, y, z)",
    "lg2": "std::log2((double)x)",
    "mad": "x * y + z",
    "max": "largest(x, y)",
    "min": "least(x, y)",
    "mov": "x",
    "mul": "x * y",
    "neg": "-x",
    "or": "x | y",
    "rcp": "1 / x",
    "rem": "remainder(x, y)",
    "rsqrt": "1 / std::sqrt((double)x)",
    "sqrt": "std::sqrt(x)",
    "sub": "x - y",
    "xor": "x ^ y",
}
# {the same: its value, of operands as they are in registers}
OF_BITS = {
    "bfe": "bits_from<T>(x, y, z)",
    "bfi": "bits_into<T>(x, y, z, w)",
    "clz": "leading_zeros<T>(x)",
    "lop3": "looked_up(x, y, z, w)",
    "popc": "__builtin_popcountll((T)x)",
    "prmt": "permuted(x, y, z)",
    "selp": "z ? value_of<T>(x) : value_of<T>(y)",
    "shl": "shifted_left<T>(x, y)",
    "shr": "shifted_right<T>(x, y)",
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
OF_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
JOINED = {"and": "&&", "or": "||", "xor": "!="}
ROUNDED = {"rm": "FE_DOWNWARD", "rp": "FE_UPWARD", "rz": "FE_TOWARDZERO"}
TO_INTEGER = {"rni": "nearbyint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
ATOMIC = {
    "add": "x + y",
    "and": "x & y",
    "exch": "y",
    "max": "largest(x, y)",
    "min": "least(x, y)",
    "or": "x | y",
    "xor": "x ^ y",
}
SHUFFLES = {"up": "UP", "down": "DOWN", "bfly": "CROSSED", "idx": "INDEXED"}
KINDS = {"bf16": ("BFLOAT", "m16n8k16"), "f16": ("HALF", "m16n8k16"), "tf32": ("TF32", "m16n8k8")}


class Unknown(ValueError):
    """An instruction, or a form of one, that is not known here."""


def register(name: str) -> str:
    """Return the name in C++ of a register or a label."""
    return "r_" + re.sub(r"\W", "_", name.lstrip("%"))


class Words:
    """Operands in C++.

    addresses   {variable: its address}; of shared memory, from the start of it
    parameters  {name: its address}: of a kernel, of a function, or for a call
    """

    def __init__(self, addresses: dict[str, str], parameters: dict):
        self.addresses, self.parameters = addresses, parameters

    def word(self, operand: str) -> str:
        """Return the bits of an operand."""
        if operand.startswith("!"):
            return f"!{self.word(operand[1:])}"
        if operand in SPECIAL:
            return SPECIAL[operand]
        if operand in self.addresses:
            return self.addresses[operand]
        if operand in self.parameters:
            return f"(uint64_t){self.parameters[operand]}"
        if number := re.fullmatch(r"0[fFdD]([0-9A-Fa-f]+)", operand):
            return f"0x{number[1]}ull"
        if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|\d+)U?", operand):
            return f"{int(operand.rstrip('U'), 0) % 2**64}ull"
        if operand.startswith("%") and "." in operand:
            raise Unknown(operand)
        return register(operand)

    def place(self, operand: str) -> tuple[str, str]:
        """Return the base and the offset of `[base+offset]`."""
        base, offset = re.fullmatch(r"\[\s*([^\]+]+?)\s*(?:\+\s*(-?\w+))?\s*\]", operand).groups()
        return base, f"{int(offset or '0', 0)}ll"

    def address(self, space: str, operand: str, num_bytes: int, line: int, is_store=True) -> str:
        """Return a pointer to so many bytes that may be read, or written too."""
        base, offset = self.place(operand)
        if space == "param" and base in self.parameters:
            return f"(char*){self.parameters[base]} + {offset}"
        where = f"{self.word(base)} + {offset}"
        if space in ("param", "local", "const"):
            return f"(char*)({where})"
        if space == "shared":
            return f"place_in_shared((unsigned)({where}), {num_bytes}, {line})"
        if base in self.addresses:
            return f"(char*)({where})"
        place = "place_in_memory" if space == "global" else "place_anywhere"
        return f"{place}({where}, {num_bytes}, {str(is_store).lower()}, {line})"


def as_cpp(instruction: Instruction, line: int, words: Words) -> str:
    """Return a statement. Errors: Unknown.

    line  a number of its own, where lanes and threads that wait at the same one meet
    """
    name = instruction.parts[0]
    made = (
        _carried
        if name in CARRIED or "cc" in instruction.parts
        else SPECIALLY.get(name)
        or (_of_bits if name in OF_BITS else _of_values if name in VALUES else None)
    )
    if made is None:
        raise Unknown(".".join(instruction.parts))
    guard = f"if ({words.word(instruction.guard)}) " if instruction.guard else ""
    return f"{guard}{{ {made(instruction.parts, instruction.operands, line, words)} }}"


def _type(kind):
    if kind not in TYPES:
        raise Unknown(f"arithmetic in {kind}")
    return TYPES[kind]


def _of_values(parts, given, line, words):
    """x, y and z of the type at the end, then the value of VALUES."""
    if any("{" in each for each in given):
        return _packed(parts, given, line, words)
    letters = "xyz"[: len(given) - 1]
    flush = "flushed" if "ftz" in parts else ""
    read = "".join(
        f"T {letter} = {flush}(value_of<T>({words.word(operand)})); "
        for letter, operand in zip(letters, given[1:])
    )
    value = _value(parts)
    if parts[-1] in FLOATS:
        value = f"{flush}(T({_limited(parts, _rounded(parts, value, letters))}))"
    elif "wide" not in parts:
        value = f"T({value})"
    return f"using T = {_type(parts[-1])}; {read}{words.word(given[0])} = bits({value});"


def _value(parts):
    name, kind = parts[0], parts[-1]
    if name == "rcp" and kind == "f64" and "approx" in parts:
        return "upper_half(1 / x)"
    if name in ("mul", "mad") and "wide" in parts:
        return VALUES[name].replace("x *", "(wide<T>)x *")
    if name in ("mul", "mad") and "hi" in parts:
        return VALUES[name].replace("x * y", f"T((wide<T>)x * y >> {BITS[kind]})")
    return VALUES[name]


def _rounded(parts, value, letters):
    mode = next((ROUNDED[part] for part in parts if part in ROUNDED), None)
    return f"rounded({mode}, [&] {{ return {value}; }}, {', '.join(letters)})" if mode else value


def _limited(parts, value):
    return f"limited({value})" if "sat" in parts else value


def _of_bits(parts, given, line, words):
    read = "".join(
        f"auto {letter} = {words.word(operand)}; " for letter, operand in zip("xyzw", given[1:])
    )
    return (
        f"using T = {_type(parts[-1])}; {read}{words.word(given[0])} = bits({OF_BITS[parts[0]]});"
    )


def _not(parts, given, line, words):
    sign = "!" if parts[-1] == "pred" else "~"
    return f"{words.word(given[0])} = {sign}{words.word(given[1])};"


def _packed(parts, given, line, words):
    """mov between a register and the parts of one, `{%r1, %r2}`."""
    to, source = given
    several = operands(to.strip("{}") if to.startswith("{") else source.strip("{}"))
    each = BITS[parts[-1]] // len(several)
    if to.startswith("{"):
        return f"uint64_t x = {words.word(source)};" + "".join(
            f" {words.word(name)} = value_of<uint{each}_t>(x >> {each * number});"
            for number, name in enumerate(several)
            if name != "_"
        )
    joined = " | ".join(
        f"(uint64_t)value_of<uint{each}_t>({words.word(name)}) << {each * number}"
        for number, name in enumerate(several)
    )
    return f"{words.word(to)} = {joined};"


def _carried(parts, given, line, words):
    """add, sub and mad that set the carry (.cc), or add it (addc, subc, madc)."""
    name, kind = parts[0].removesuffix("c"), parts[-1]
    letters = "xyz"[: len(given) - 1]
    read = "".join(
        f"T {letter} = value_of<T>({words.word(operand)}); "
        for letter, operand in zip(letters, given[1:])
    )
    half = f"T((wide<T>)x * y >> {BITS[kind]})" if "hi" in parts else "T((wide<T>)x * y)"
    first, second = (half, "z") if name == "mad" else ("x", "y")
    sign = "-" if name == "sub" else "+"
    more = f" {sign} carry" if parts[0] != name else ""
    unsigned = f"std::make_unsigned_t<{_type(kind)}>"
    kept = f" carry = sum >> {BITS[kind]} & 1;" if "cc" in parts else ""
    return (
        f"using T = {_type(kind)}; using U = {unsigned}; {read}"
        f"auto sum = (unsigned __int128)U({first}) {sign} U({second}){more};{kept} "
        f"{words.word(given[0])} = U(sum);"
    )


def _space(parts):
    return next((part for part in parts if part in SPACES), "any")


def _memory(parts, given, line, words):
    """ld and st: one number, or `{...}` of two or four."""
    is_store = parts[0] == "st"
    names, place = given[::-1] if is_store else given
    several = operands(names.strip("{}"))
    kind = f"u{BITS[parts[-1]]}" if parts[-1][0] != "s" else parts[-1]
    size = BITS[kind] // 8
    at = words.address(_space(parts), place, size * len(several), line, is_store)
    move = "store<T>({at}, {word})" if is_store else "{word} = load<T>({at})"
    return f"using T = {_type(kind)}; auto at = {at};" + "".join(
        f" {move.format(at=f'at + {size * number}', word=words.word(name))};"
        for number, name in enumerate(several)
        if name != "_"
    )


def _atomic(parts, given, line, words):
    action = next((ATOMIC[part] for part in parts[1:] if part in ATOMIC), None)
    if action is None:
        raise Unknown(".".join(parts))
    *result, place, operand = given
    at = words.address(_space(parts), place, BITS[parts[-1]] // 8, line)
    kept = f" {words.word(result[0])} = bits(x);" if result else ""
    return (
        f"using T = {_type(parts[-1])}; auto at = {at}; T x = load<T>(at), "
        f"y = value_of<T>({words.word(operand)}); store<T>(at, bits(T({action})));{kept}"
    )


def _address(parts, given, line, words):
    """cvta: between addresses in a space and those of all memory."""
    if not set(parts) & set(SPACES):
        raise Unknown(".".join(parts))
    shift = (
        ("-" if "to" in parts else "+") + " (uint64_t)machine->shared" if "shared" in parts else ""
    )
    return f"{words.word(given[0])} = {words.word(given[1])} {shift};"


def _compared(parts, given, line, words):
    """setp, whose result may be joined with another predicate."""
    kind, name = parts[-1], parts[1]
    is_unordered = kind in FLOATS and name.endswith("u") and name[:-1] in COMPARISONS
    sign = (COMPARISONS | OF_UNSIGNED).get(name.removesuffix("u") if is_unordered else name)
    flush = "flushed" if "ftz" in parts else ""
    if name in ("num", "nan"):
        result = "!is_nan" if name == "num" else "is_nan"
    elif sign is None:
        raise Unknown(".".join(parts))
    else:
        result = f"is_nan || x {sign} y" if is_unordered else f"!is_nan && x {sign} y"
    joined = next((JOINED[part] for part in parts[2:] if part in JOINED), None)
    more = f" {joined} ({words.word(given[3])} != 0)" if joined else ""
    true, *false = given[0].split("|")
    opposite = f" {words.word(false[0])} = !is_so{more};" if false else ""
    return (
        f"using T = {_type(kind)}; T x = {flush}(value_of<T>({words.word(given[1])})), "
        f"y = {flush}(value_of<T>({words.word(given[2])})); "
        f"bool is_nan = x != x || y != y, is_so = {result}; "
        f"{words.word(true)} = is_so{more};{opposite}"
    )


def _converted(parts, given, line, words):
    to, source = parts[-2:]
    word, target = words.word(given[1]), words.word(given[0])
    modes = [part for part in parts[1:-2] if part not in ("ftz", "sat", "rn")]
    if to in ("bf16x2", "f16x2"):
        kind = "BFLOAT" if to == "bf16x2" else "HALF"
        value = f"pair<{kind}>(value_of<float>({words.word(given[2])}), value_of<float>({word}))"
    elif to == "tf32" and modes == ["rna"]:
        value, modes = f"rounded_to_tf32({word})", []
    elif to in HALVES and source not in HALVES:
        value = f"rounded_to_{HALVES[to]}({_number(source, word)})"
    else:
        value, modes = _of_numbers(parts, to, source, word, modes)
    if modes:
        raise Unknown(".".join(parts))
    return f"{target} = bits({value});"


def _number(kind, word):
    halves = {"f16": f"half_of({word})", "bf16": f"float_of((uint32_t)({word}) << 16)"}
    return halves.get(kind) or f"value_of<{_type(kind)}>({word})"


def _of_numbers(parts, to, source, word, modes):
    """cvt between numbers; what is left of its modes."""
    value = _number(source, word)
    if "ftz" in parts and source == "f32":
        value = f"flushed({value})"
    if modes and modes[0] in TO_INTEGER and source in FLOATS:
        value = f"std::{TO_INTEGER[modes.pop()]}({value})"
        if to not in FLOATS:
            return f"whole<{_type(to)}>({value})", modes
    value = f"({_type(to)})({value})"
    if to in FLOATS:
        value = _limited(parts, value)
    return f"flushed({value})" if "ftz" in parts and to == "f32" else value, modes


def _shuffled(parts, given, line, words):
    to, value, lane, limits, mask = given
    target, *is_inside = to.split("|")
    more = f" {words.word(is_inside[0])} = is_inside;" if is_inside else ""
    what = ", ".join(words.word(each) for each in (value, lane, limits, mask))
    return (
        f"bool is_inside; unsigned x = shuffled({SHUFFLES[parts[2]]}, {what}, {line}, is_inside); "
        f"{words.word(target)} = x;{more}"
    )


def _voted(parts, given, line, words):
    target, is_set, mask = given
    votes = "ballot((unsigned){mask}, {is_set}, {line})"
    results = {
        "ballot": votes,
        "any": f"{votes} != 0",
        "all": votes.replace("{is_set}", "!{is_set}") + " == 0",
    }
    if parts[2] not in results:
        raise Unknown(".".join(parts))
    text = results[parts[2]].format(mask=words.word(mask), is_set=words.word(is_set), line=line)
    return f"{words.word(target)} = {text};"


def _barrier(parts, given, line, words):
    if "warp" in parts:
        return f"exchange((unsigned){words.word(given[0])}, 0, lane_number(), {line});"
    if given != ("0",):
        raise Unknown(f"{'.'.join(parts)} {', '.join(given)}: of some threads of a block")
    return f"barrier({line});"


def _copied(parts, given, line, words):
    """cp.async from memory to shared memory, and the wait for all copies."""
    if parts[2] == "wait_all":
        return "finish_copies();"
    if parts[-2:] != ("shared", "global"):
        raise Unknown(".".join(parts))
    (to, shift), (source, offset) = map(words.place, given[:2])
    return (
        f"unsigned bytes = {words.word(given[-1])}, to = {words.word(to)} + {shift}; "
        f"uint64_t from = {words.word(source)} + {offset}; "
        f"if (bytes) in_memory(from, bytes, false, {line}); "
        f"start_copy(to, (const void*)from, bytes, {given[2]}, {line});"
    )


def _called(parts, given, line, words):
    """call (result), function, (parameters)."""
    result, name, *rest = given if given[0].startswith("(") else ("", *given)
    names = operands(rest[0].strip("()")) if rest else ()
    passed = ", ".join(words.parameters[each] for each in names) or "nullptr"
    to = words.parameters[result.strip("()")] if result else "nullptr"
    return f"const char* passed[] = {{{passed}}}; function_{register(name)}({to}, passed);"


def _loaded_matrices(parts, given, line, words):
    if parts[1:5] != ("sync", "aligned", "m8n8", "x4") or parts[-1] != "b16":
        raise Unknown(".".join(parts))
    (base, offset), is_turned = words.place(given[1]), str("trans" in parts).lower()
    return (
        f"unsigned x[4]; load<{is_turned}>(x, (unsigned)({words.word(base)} + {offset}), {line});"
        + "".join(
            f" {words.word(name)} = x[{number}];"
            for number, name in enumerate(operands(given[0].strip("{}")))
        )
    )


def _multiplied(parts, given, line, words):
    """mma of a warp, [16, k] times [k, 8]."""
    shape, layout, dtypes = parts[3], parts[4:6], parts[6:]
    kind, its_shape = KINDS.get(dtypes[1], ("", ""))
    if layout != ("row", "col") or shape != its_shape or dtypes != ("f32", *2 * dtypes[1:2], "f32"):
        raise Unknown(".".join(parts))
    d, a, b, c = [[words.word(name) for name in operands(each.strip("{}"))] for each in given]
    numbers = ", ".join(f"value_of<float>({word})" for word in c)
    return (
        f"float c[] = {{{numbers}}}; unsigned a[] = {{{', '.join(a)}}}, b[] = {{{', '.join(b)}}}; "
        f"multiply<{kind}>(c, a, b, {line});"
        + "".join(f" {word} = bits(c[{number}]);" for number, word in enumerate(d))
    )


def _funnel(parts, given, line, words):
    """shf: 32 of the 64 bits of two registers."""
    low, high, count = map(words.word, given[1:])
    limit = "& 31" if parts[2] == "wrap" else "> 32 ? 32 : count"
    shift = "x << count >> 32" if parts[1] == "l" else "x >> count"
    return (
        f"unsigned count = {count}; count = count {limit}; "
        f"uint64_t x = (uint64_t)(uint32_t){high} << 32 | (uint32_t){low}; "
        f"{words.word(given[0])} = (uint32_t)({shift});"
    )


SPECIALLY = {
    "atom": _atomic,
    "bar": _barrier,
    "barrier": _barrier,
    "bra": lambda parts, given, line, words: f"goto {register(given[0])};",
    "call": _called,
    "cp": _copied,
    "cvt": _converted,
    "cvta": _address,
    "exit": lambda *_: "return;",
    "ld": _memory,
    "ldmatrix": _loaded_matrices,
    "mma": _multiplied,
    "not": _not,
    "red": _atomic,
    "ret": lambda *_: "return;",
    "setp": _compared,
    "shf": _funnel,
    "shfl": _shuffled,
    "st": _memory,
    "vote": _voted,
}
