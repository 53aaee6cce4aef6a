"""Measure how the package is built, and lower the limits on it.

    python benchmarks/structure.py                     a table of this checkout
    python benchmarks/structure.py --base ../before    another checkout beside it
    python benchmarks/structure.py --list "attributes set on foreign objects"    the places
    python benchmarks/structure.py --lower             write figures that fell into limits.json

tests/pure/test_structure.py fails where a figure is above its limit in benchmarks/limits.json. A
limit only falls: --lower writes the smaller of both, and the test reads in git's history whether
one has risen, or went away without a word in RETIRED. A figure is what stands in the code now, by
its syntax tree: a function that is imported under another name is still called, and what a class
inherits is still its own.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from foreign import frames, set_elsewhere, set_on_parts_of_others
from parsed import FUNCTIONS, Package
from repeats import repeats
from roads import ROADS, read_roads

MOST_COLUMNS = 100
MOST_NODES = 30  # of the syntax tree, that begin on one line
MOST_METHODS = 25  # of one class, or of all from which it derives, and public members
MOST_ATTRIBUTES = 15
TORN_OFF = ("Of ", "Those ", "That ", "As ", "The same")
# The classes that decide how an array is kept: what they say yes or no to, they are not asked for.
KEEPERS = ("parallel/data/keepers.py", "layout/policy.py")
# {what was measured once: the figure that is measured instead, or why none is}. Such a successor
# begins at or below the last limit of the one that went away.
RATIO = (
    "a ratio over all lines rises when sparse repeated lines go away, so it asked for more lines: "
    "dense lines are counted instead"
)
RETIRED = {"syntax nodes per line of code": RATIO, "the same without imports": RATIO}
HERE = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_name("limits.json")
CONTRACTS = HERE / "docs/api/models.md"  # tables of members that classes promise

STEP = """
import json, sys, threading
import numpy
import shardkit as sk
folder = sk.__file__.removesuffix("__init__.py")
files, functions, lock = set(), set(), threading.Lock()

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(folder):
        with lock:
            files.add(code.co_filename)
            functions.add((code.co_filename, code.co_firstlineno))

def on_rank(backend):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-3))
    model = sk.FSDPModel(sk.models.GPT(64, 16, width=32, layers=2, heads=2), config)
    tokens = numpy.random.default_rng(backend.rank).integers(0, 64, (4, 17))
    model.train(tokens[:, :-1], tokens[:, 1:])
    backend.barrier()
    sys.setprofile(note)
    model.train(tokens[:, :-1], tokens[:, 1:])
    sys.setprofile(None)

sk.run_ranks(2, on_rank)
models = [f for f in files if f.removeprefix(folder).startswith(("array/", "nn/"))]
print(json.dumps([len(files), len(files) - len(models), len(functions)]))
"""


# {what is measured: function (package) -> the places that count, {place: how often}, or a number}
FIGURES: dict[str, Callable[[Package], list[str] | dict[str, int] | float]] = {}
OF_A_STEP = ("files that an FSDP step enters", "files of the engine among them")


def figure(name: str):
    """Enter a function into FIGURES."""

    def enter(measure):
        FIGURES[name] = measure
        return measure

    return enter


# ---- lines and files -----------------------------------------------------------------------------


@figure(f"lines over {MOST_COLUMNS} columns")
def long_lines(package) -> list[str]:
    """Return file:line of lines that are too long."""
    return [
        f"{module.path.relative_to(package.folder)}:{number}"
        for module in package.modules.values()
        for number, line in enumerate(module.text.splitlines(), 1)
        if len(line) > MOST_COLUMNS
    ]


@figure(f"lines of more than {MOST_NODES} syntax nodes")
def dense_lines(package) -> list[str]:
    """Return file:line of lines on which more nodes of the syntax tree begin than one can read."""
    return [
        f"{module.path.relative_to(package.folder)}:{number}"
        for module in package.modules.values()
        for number, count in sorted(_nodes_by_line(module.tree).items())
        if count > MOST_NODES
    ]


def _nodes_by_line(tree: ast.Module) -> Counter[int]:
    """Return {line: how many nodes begin there}; one without a place stands with its parent."""
    counts: Counter[int] = Counter()
    waiting = [(each, 1) for each in tree.body]
    while waiting:
        node, line_of_parent = waiting.pop()
        line = getattr(node, "lineno", line_of_parent)
        counts[line] += 1
        waiting += [(child, line) for child in ast.iter_child_nodes(node)]
    return counts


@figure("packed assignments")
def packed_assignments(package) -> list[str]:
    """Return file:line of `a, b, c = x, y, z`: more assignments than a pair or a swap."""
    return [
        package.place(module, node)
        for module in package.modules.values()
        for node in module.of(ast.Assign)
        if isinstance(node.value, ast.Tuple)
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.value.elts) > 2
    ]


@figure("docstrings that begin mid-sentence")
def torn_off_docstrings(package) -> list[str]:
    """Return file:line of docstrings that begin in the middle of a sentence."""
    return [
        package.place(module, node)
        for module in package.modules.values()
        for _, node in module.docstrings()
        if node.value.value.strip().startswith(TORN_OFF)
    ]


FIGURES["near-duplicates, pairs of files"] = repeats

# ---- imports -------------------------------------------------------------------------------------


@figure("modules in import cycles")
def modules_in_cycles(package) -> list[str]:
    """Return the modules that import each other."""
    return [name for cycle in package.cycles for name in cycle]


@figure("longest import path")
def longest_import_path(package) -> float:
    """Return the number of modules on the longest chain of imports."""
    return len(package.longest_import_path)


@figure("imports between wings that import each other")
def mutual_wings(package) -> list[str]:
    """Return the imports of folders beside each other that need each other, directly or round."""
    return [
        text
        for group in package.circles_of_wings
        for one in group
        for other in group
        if one != other
        for text in package.imports_between(one, other)
    ]


# ---- classes -------------------------------------------------------------------------------------


def contracts() -> dict[str, set[str]]:
    """Return {class: the members that the documentation promises of it in a table of their own}."""
    found = {}
    for part in CONTRACTS.read_text().split("## Members of ")[1:]:
        table = re.split(r"\n(?=#|:::)", part, maxsplit=1)[0]
        rows = re.findall(r"^\|[^|]*\|(.*)\|$", table, re.M)
        found[part.split("`")[1]] = {each for row in rows for each in re.findall(r"`(\w+)`", row)}
    return found


def members_promised(name: str) -> set[str]:
    """Return the members that the documentation promises of a class; none without a table."""
    return contracts().get(name, set())


def _beyond(package, names_of, most: int) -> dict[str, int]:
    """Return {class: how many names beyond `most` it has}, those that a base has too left out.

    What a class or one of its bases promises is no choice of its code, and does not count.
    """
    promised = contracts()
    beyond = {}
    for name in package.classes:
        contract = set().union(*(promised.get(each, ()) for each in package.ancestors(name)))
        beyond[name] = max(0, len(names_of(name) - contract) - most)
    own = {
        name: count - max((beyond[base] for base in package.bases(name)), default=0)
        for name, count in beyond.items()
    }
    return {name: count for name, count in own.items() if count > 0}


@figure(f"methods beyond {MOST_METHODS} of a class")
def methods_of_large_classes(package) -> dict[str, int]:
    """Return {class: how many functions too many its body defines}."""
    return _beyond(package, package.own_methods, MOST_METHODS)


@figure(f"the same with inherited ones ({MOST_METHODS})")
def methods_of_large_families(package) -> dict[str, int]:
    """Return {class: how many functions too many it has with those of the classes above it}."""
    return _beyond(package, package.methods, MOST_METHODS)


@figure(f"public members beyond {MOST_METHODS} of a class, inherited ones too")
def members_of_wide_classes(package) -> dict[str, int]:
    """Return {class: how many things too many a user can ask of it}."""
    return _beyond(package, package.public_members, MOST_METHODS)


@figure("public members of ShardedModel")
def members_of_sharded_model(package) -> list[str]:
    """Return what a user can ask of a sharded model."""
    return sorted(package.public_members("ShardedModel"))


@figure("members of a channel")
def members_of_a_channel(package) -> float:
    """Return the most that a channel has, functions and attributes, private ones too."""
    return max(
        len(package.methods(name) | package.attributes(name))
        for name in package.classes
        if "Channel" in package.ancestors(name)
    )


@figure(f"attributes beyond {MOST_ATTRIBUTES} of a class")
def attributes_of_large_classes(package) -> dict[str, int]:
    """Return {class: how many attributes too many it holds, with what its bases set}."""
    return _beyond(package, package.attributes, MOST_ATTRIBUTES)


@figure("deepest inheritance")
def deepest_inheritance(package) -> float:
    """Return how many classes of the package derive from each other."""
    return package.deepest_class[0]


@figure("names of several classes")
def names_of_several_classes(package) -> list[str]:
    """Return the names that several classes have."""
    return package.duplicate_classes


# ---- who does what -------------------------------------------------------------------------------

FIGURES["calls for a frame"] = frames
FIGURES["attributes set on foreign objects"] = set_elsewhere
FIGURES["attributes set on parts of others"] = set_on_parts_of_others


@figure("functions that walk frames")
def walks_of_frames(package) -> list[str]:
    """Return the functions that go from a frame to its caller."""
    return [
        package.place(module, node)
        for module in package.modules.values()
        for node in module.of(*FUNCTIONS)
        if any(
            getattr(each, "attr", None) == "f_back" or getattr(each, "value", None) == "f_back"
            for each in ast.walk(node)
        )
    ]


@figure("classes that answer for names they do not define")
def answers_for_others(package) -> list[str]:
    """Return where a class has __getattr__ or __getattribute__: its members cannot be counted."""
    return [
        package.place(module, item)
        for module in package.modules.values()
        for body in module.of(ast.ClassDef)
        for item in body.body
        if isinstance(item, FUNCTIONS) and item.name in ("__getattr__", "__getattribute__")
    ]


@figure("definitions of all_reduce in comm/")
def definitions_of_all_reduce(package) -> list[str]:
    """Return where a function of comm/, or of its transports in gpu/, is named after the verb."""
    return [
        f"{package.place(module, node)} {node.name}"
        for module in package.modules.values()
        if str(module.path.relative_to(package.folder)).startswith(("comm/", "gpu/transports/"))
        for node in module.of(*FUNCTIONS)
        if "all_reduce" in node.name
    ]


@figure("keepers asked how they keep")
def keepers_asked(package) -> list[str]:
    """Return file:line where parallel/ decides by a flag of a keeper or a policy."""
    flags = flags_of(package)
    found = []
    for module in package.modules.values():
        path = str(module.path.relative_to(package.folder))
        if path.startswith("parallel/") and path not in KEEPERS:
            for test in tests_in(module):
                asked = {each.attr for each in ast.walk(test) if isinstance(each, ast.Attribute)}
                if asked & flags:
                    found.append(f"{package.place(module, test)} {', '.join(asked & flags)}")
    return sorted(set(found))


def flags_of(package) -> set[str]:
    """Return the names of what the classes in KEEPERS answer with True or False."""
    flags = set()
    for module in package.modules.values():
        if str(module.path.relative_to(package.folder)) in KEEPERS:
            for body in module.of(ast.ClassDef):
                for item in body.body:
                    flags |= set(_flags_in(item))
    return flags


def _flags_in(item):
    """Yield the names that a line in the body of a class makes True, False or bool."""
    if isinstance(item, FUNCTIONS) and item.returns is not None:
        if ast.unparse(item.returns) == "bool":
            yield item.name
    elif isinstance(item, ast.AnnAssign) and ast.unparse(item.annotation) == "bool":
        yield ast.unparse(item.target)
    elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
        if isinstance(item.value.value, bool):
            yield from map(ast.unparse, item.targets)


def tests_in(module) -> list[ast.expr]:
    """Return the expressions by which a module decides."""
    tests = [node.test for node in module.of(ast.If, ast.IfExp, ast.While)]
    tests += [test for node in module.of(ast.comprehension) for test in node.ifs]
    tests += [value for node in module.of(ast.BoolOp) for value in node.values]
    return tests + [n.operand for n in module.of(ast.UnaryOp) if isinstance(n.op, ast.Not)]


# ---- roads ---------------------------------------------------------------------------------------


def measures_of_roads(checkout: Path) -> dict[str, Callable[[Package], float]]:
    """Return {"ROAD: files", "ROAD: definitions", "ROAD: nodes"} of the roads in docs/hops.md."""
    return {
        f"{title}: {what}": lambda package, road=road, what=what: road.measured(package)[what]
        for title, road in read_roads(checkout / ROADS).items()
        for what in ("files", "definitions", "nodes")
    }


def step_entries(checkout: Path) -> list[int]:
    """Return what one FSDP step on two threads enters: files, those of the engine, functions.

    The engine is all but `array` and `nn`, which are the mathematics of the model.
    """
    done = subprocess.run(
        [sys.executable, "-c", STEP],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout), "PATH": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [int(number) for number in done.stdout.strip().strip("[]").split(",")]


# ---- limits --------------------------------------------------------------------------------------


def measures(package) -> dict[str, Callable]:
    """Return {what is measured: the function} of all that has a limit, but for OF_A_STEP."""
    return FIGURES | measures_of_roads(package.folder.parent)


def places(found) -> list[str]:
    """Return what a figure counts, in words; [] if it is a number."""
    if isinstance(found, dict):
        return [f"{place}: {count}" for place, count in found.items()]
    return found if isinstance(found, list) else []


def number_of(found) -> float:
    """Return the figure: of places their number, of counts their sum."""
    if isinstance(found, dict):
        return sum(found.values())
    return len(found) if isinstance(found, list) else found


def measured(package) -> dict[str, float]:
    """Return {what is measured: its figure}."""
    return {name: number_of(measure(package)) for name, measure in measures(package).items()}


def read_limits() -> dict[str, float]:
    """Return {what is measured: the most that it may be}."""
    return json.loads(LIMITS.read_text()) if LIMITS.exists() else {}


def lowered(limits: dict[str, float], figures: dict[str, float]) -> dict[str, float]:
    """Return the limits after these figures: none above its limit, none that is not measured."""
    return {name: min(count, limits.get(name, count)) for name, count in figures.items()}


def lower(figures: dict[str, float]) -> int:
    """Write the limits, say what has fallen, and return how many figures are above their limits."""
    before = read_limits()
    after = lowered(before, figures)
    LIMITS.write_text(json.dumps(after, indent=2) + "\n")
    for name, limit in after.items():
        if limit != before.get(name):
            print(f"{name}: {before.get(name, 'no limit')} -> {limit}")
    above = [name for name, count in figures.items() if count > after[name]]
    for name in above:
        print(f"{name}: {figures[name]}, above its limit {after[name]}, which stays")
    return len(above)


# ---- the table -----------------------------------------------------------------------------------


def figures(checkout: Path) -> dict[str, object]:
    """Return {what is measured: its figure} of one checkout."""
    package = Package(checkout / "shardkit")
    modules = package.modules.values()
    flat = Counter(str(module.path.parent.relative_to(package.folder)) for module in modules)
    folder, most = flat.most_common(1)[0]
    return {
        "files": len(package.modules),
        "lines": sum(len(module.text.splitlines()) for module in modules),
        "lines of code": sum(len(module.code) for module in modules),
        "most files in one folder": f"{most} ({folder})",
        **measured(package),
        **dict(zip([*OF_A_STEP, "functions that an FSDP step enters"], step_entries(checkout))),
    }


def main() -> int:
    """Print the table, the places behind a figure, or what fell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", type=Path, help="another checkout, to compare with")
    parser.add_argument("--list", choices=list(FIGURES), help="name the places behind a figure")
    parser.add_argument("--lower", action="store_true", help="write limits.json; none rises")
    options = parser.parse_args()
    if options.list:
        print(*places(FIGURES[options.list](Package(HERE / "shardkit"))), sep="\n")
        return 0
    if options.lower:
        of_a_step = dict(zip(OF_A_STEP, step_entries(HERE)))
        return min(1, lower(measured(Package(HERE / "shardkit")) | of_a_step))
    checkouts = [path.resolve() for path in (options.base, HERE) if path is not None]
    columns = [figures(path) for path in checkouts]
    for name in columns[-1]:
        print(f"{name:60s}" + "".join(f"{column.get(name, '-')!s:>24s}" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
