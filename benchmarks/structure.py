"""Measure how the package is built: sizes, imports, classes, density, and what one step enters.

    python benchmarks/structure.py                     a table of this checkout
    python benchmarks/structure.py --base ../before    another checkout beside it

tests/pure/test_structure.py holds the limits. An import inside of a function counts like any other;
a class has the methods of its own body and, for `inherited`, those of the classes of the package
that it derives from.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

MOST_COLUMNS = 100
MOST_METHODS = 25
POLICY_TESTS = ("shard_parameters", "shard_gradients", "shard_optimizer_state")
TORN_OFF = ("Of ", "Those ", "That ", "As ", "The same")
HERE = Path(__file__).resolve().parents[1]
CONTRACTS = HERE / "docs/api/models.md"

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


@dataclass(frozen=True)
class Import:
    """One module of the package imports another."""

    source: str
    target: str


@dataclass
class Module:
    """One file of the package: its dotted name, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    is_package: bool
    tree: ast.Module = field(init=False)
    names: ast.Module = field(init=False)  # of a room, its __init__.pyi: what its table imports

    def __post_init__(self):
        self.tree = ast.parse(self.text)
        stub = self.path.with_suffix(".pyi")
        self.names = ast.parse(stub.read_text() if stub.exists() else "")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of its syntax tree."""
        return list(ast.walk(self.tree))

    def docstrings(self):
        """Yield (line, node) of every docstring."""
        for node in self.nodes:
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    if isinstance(first.value.value, str):
                        yield first.lineno, first

    @cached_property
    def code_lines(self) -> int:
        """Lines that are neither blank nor a comment nor part of a docstring."""
        prose = {
            number
            for _, node in self.docstrings()
            for number in range(node.lineno, node.end_lineno + 1)
        }
        lines = enumerate(self.text.splitlines(), 1)
        return sum(
            bool(line.strip()) and not line.strip().startswith("#") and number not in prose
            for number, line in lines
        )

    def imports(self, known):
        """Yield the modules of the package that this one imports, at any level."""
        for node in [*self.nodes, *ast.walk(self.names)]:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in known)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                names = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name for name in names if name in known)
                if base in known and any(name not in known for name in names):
                    yield base

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])


class Package:
    """All modules of a package and what can be measured about them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.modules = {}
        for path in sorted(folder.rglob("*.py")):
            parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            self.modules[name] = Module(name, path, path.read_text(), is_package)

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """{module: the modules of the package that it imports}."""
        return {
            name: set(module.imports(self.modules)) - {name}
            for name, module in self.modules.items()
        }

    @cached_property
    def components(self) -> list[list[str]]:
        """Strongly connected components, each after what it imports (Tarjan's algorithm)."""
        order = {}
        low = {}
        stack = []
        found = []

        def visit(name):
            order[name] = low[name] = len(order)
            stack.append(name)
            for target in sorted(self.imports[name]):
                if target not in order:
                    visit(target)
                    low[name] = min(low[name], low[target])
                elif target in stack:
                    low[name] = min(low[name], order[target])
            if low[name] == order[name]:
                at = stack.index(name)
                found.append(stack[at:])
                del stack[at:]

        for name in self.modules:
            if name not in order:
                visit(name)
        return found

    @property
    def cycles(self) -> list[list[str]]:
        """Groups of modules that import each other."""
        return [sorted(component) for component in self.components if len(component) > 1]

    @property
    def longest_import_path(self) -> list[str]:
        """The longest chain of modules of which each imports the next; a cycle counts whole."""
        best: dict[str, list[str]] = {}
        for component in self.components:
            targets = {t for name in component for t in self.imports[name]} - set(component)
            longest = max((best[target] for target in targets), key=len, default=[])
            for name in component:
                best[name] = [*component, *longest]
        return max(best.values(), key=len)

    @cached_property
    def classes(self) -> dict[str, list[tuple[Module, ast.ClassDef]]]:
        """{name: where classes of this name are defined}."""
        found = defaultdict(list)
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append((module, node))
        return found

    @property
    def duplicate_classes(self) -> list[str]:
        """Names that several classes have."""
        return sorted(name for name, places in self.classes.items() if len(places) > 1)

    def bases(self, name: str) -> list[str]:
        """Return the names of the classes of the package that this one derives from directly."""
        found = []
        for _, node in self.classes[name]:
            for base in node.bases:
                text = ast.unparse(base).split(".")[-1].split("[")[0]
                if text in self.classes and text != name:
                    found.append(text)
        return found

    def depth(self, name: str) -> int:
        """Return how many classes of the package lie on the longest way up, this one included."""
        return 1 + max(map(self.depth, self.bases(name)), default=0)

    def own_methods(self, name: str) -> int:
        """Return how many functions the body of this class defines."""
        return max(
            sum(isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) for item in node.body)
            for _, node in self.classes[name]
        )

    def public_members(self, name: str) -> set[str]:
        """Return what a user can ask of an object of this class, with what it inherits."""
        found = set()
        for _, node in self.classes[name]:
            for item in node.body:
                if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found.add(item.name)
                elif isinstance(item, ast.Assign):
                    found |= {each.id for each in item.targets if isinstance(each, ast.Name)}
                elif isinstance(item, ast.AnnAssign):
                    found.add(ast.unparse(item.target))
            found |= {
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and ast.unparse(each.value) == "self"
            }
        own = {each for each in found if not each.startswith("_")}
        return own.union(*map(self.public_members, self.bases(name)))

    def all_methods(self, name: str) -> int:
        """Return the same with those of the classes of the package that it derives from."""
        return self.own_methods(name) + sum(map(self.all_methods, self.bases(name)))

    @property
    def large_classes(self) -> dict[str, int]:
        """{class: its own methods} of classes with more than MOST_METHODS, a contract left out."""
        counts = {
            name: self.own_methods(name) - len(members_promised(name)) for name in self.classes
        }
        return {name: count for name, count in counts.items() if count > MOST_METHODS}

    @property
    def deepest_class(self) -> tuple[int, str]:
        """(depth, name) of the class with the longest way up inside of the package."""
        return max((self.depth(name), name) for name in self.classes)

    @property
    def nodes_per_line(self) -> float:
        """Nodes of the syntax trees per line of code."""
        nodes = sum(len(module.nodes) for module in self.modules.values())
        return nodes / sum(module.code_lines for module in self.modules.values())

    def long_lines(self) -> list[str]:
        """Return file:line of lines with more than MOST_COLUMNS columns."""
        return [
            f"{module.path.relative_to(self.folder)}:{number}"
            for module in self.modules.values()
            for number, line in enumerate(module.text.splitlines(), 1)
            if len(line) > MOST_COLUMNS
        ]

    def torn_off_docstrings(self) -> list[str]:
        """Return file:line of docstrings that begin in the middle of a sentence."""
        return [
            f"{module.path.relative_to(self.folder)}:{line}"
            for module in self.modules.values()
            for line, node in module.docstrings()
            if node.value.value.strip().startswith(TORN_OFF)
        ]

    def policy_tests(self) -> list[str]:
        """Return file:line where parallel/ asks what a policy shards."""
        return self._attributes(POLICY_TESTS, "parallel/")

    def counted_frames(self) -> list[str]:
        """Return file:line of sys._getframe."""
        return self._attributes(("_getframe",), "")

    def _attributes(self, names, folder) -> list[str]:
        return [
            f"{module.path.relative_to(self.folder)}:{node.lineno}"
            for module in self.modules.values()
            if str(module.path.relative_to(self.folder)).startswith(folder)
            for node in module.nodes
            if isinstance(node, ast.Attribute) and node.attr in names
        ]

    def packed_assignments(self) -> list[str]:
        """Return file:line of `a, b, c = x, y, z`: more assignments than a pair or a swap."""
        found = []
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                    if isinstance(node.targets[0], ast.Tuple) and len(node.value.elts) > 2:
                        found.append(f"{module.path.relative_to(self.folder)}:{node.lineno}")
        return found


def members_promised(name: str) -> set[str]:
    """Return the members that the documentation promises of a class, in a table of their own."""
    _, heading, rest = CONTRACTS.read_text().partition(f"## Members of `{name}`\n")
    table, _, _ = rest.partition("\n#")
    table, _, _ = table.partition("\n:::")
    rows = re.findall(r"^\|[^|]*\|(.*)\|$", table, re.M) if heading else []
    return {member for row in rows for member in re.findall(r"`(\w+)`", row)}


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


def figures(checkout: Path) -> dict[str, object]:
    """Return {what is measured: its figure} of one checkout."""
    package = Package(checkout / "shardkit")
    modules = package.modules.values()
    files, engine, functions = step_entries(checkout)
    flat = Counter(str(module.path.parent.relative_to(package.folder)) for module in modules)
    folder, most = flat.most_common(1)[0]
    large = package.large_classes
    inherited = {name: package.all_methods(name) for name in package.classes}
    tower = max(inherited, key=inherited.get)
    return {
        "files": len(package.modules),
        "lines": sum(len(module.text.splitlines()) for module in modules),
        "lines of code": sum(module.code_lines for module in modules),
        "syntax nodes per line of code": round(package.nodes_per_line, 2),
        f"lines over {MOST_COLUMNS} columns": len(package.long_lines()),
        "most files in one folder": f"{most} ({folder})",
        "modules in import cycles": sum(map(len, package.cycles)),
        "longest import path": len(package.longest_import_path),
        f"classes over {MOST_METHODS} methods": ", ".join(f"{n} {c}" for n, c in large.items()),
        "most methods with inherited ones": f"{tower} {inherited[tower]}",
        "deepest inheritance": "{} ({})".format(*package.deepest_class),
        "names of several classes": len(package.duplicate_classes),
        "tests of a policy in parallel/": len(package.policy_tests()),
        "sys._getframe": len(package.counted_frames()),
        "packed assignments": len(package.packed_assignments()),
        "docstrings that begin mid-sentence": len(package.torn_off_docstrings()),
        "files that an FSDP step enters": files,
        "files of the engine among them": engine,
        "functions that an FSDP step enters": functions,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", type=Path, help="another checkout, to compare with")
    parser.add_argument("--list", action="store_true", help="name the places behind the figures")
    options = parser.parse_args()
    checkouts = [path for path in (options.base, HERE) if path is not None]
    columns = [figures(path.resolve()) for path in checkouts]
    for name in columns[0]:
        print(f"{name:38s}" + "".join(f"{column[name]!s:>28s}" for column in columns))
    if options.list:
        package = Package(HERE / "shardkit")
        print("cycles:", *package.cycles, sep="\n  ")
        print("longest import path:", *package.longest_import_path, sep="\n  ")
        print("names of several classes:", *package.duplicate_classes, sep="\n  ")
        for places in (package.policy_tests(), package.long_lines(), package.packed_assignments()):
            print(*places, sep="\n  ")


if __name__ == "__main__":
    main()
