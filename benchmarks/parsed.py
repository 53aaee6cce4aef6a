"""The files of a package, parsed: their syntax trees, what they import, and their classes.

An import inside of a function counts like any other. What a stub gives to a class of the package
(nn/tensor_methods.pyi) counts as the methods of a class from which it derives.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


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
        is_there = self.path.suffix == ".py" and stub.exists()
        self.names = ast.parse(stub.read_text() if is_there else "")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes of its syntax tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def by_kind(self) -> dict[type, list]:
        """{kind: the nodes of this kind}."""
        found = defaultdict(list)
        for node in self.nodes:
            found[type(node)].append(node)
        return found

    def of(self, *kinds: type) -> list:
        """Return the nodes of these kinds."""
        return [node for kind in kinds for node in self.by_kind.get(kind, ())]

    def docstrings(self) -> Iterator[tuple[int, ast.Expr]]:
        """Yield (line, node) of every docstring."""
        for node in self.of(ast.Module, ast.ClassDef, *FUNCTIONS):
            if (first := docstring_of(node)) is not None:
                yield first.lineno, first

    @cached_property
    def prose(self) -> set[int]:
        """The lines of docstrings."""
        return lines_of(node for _, node in self.docstrings())

    @cached_property
    def imported(self) -> set[int]:
        """The lines of imports."""
        return lines_of(self.of(ast.Import, ast.ImportFrom))

    @cached_property
    def code(self) -> list[int]:
        """The lines that are neither blank nor a comment nor part of a docstring."""
        return [
            number
            for number, line in enumerate(self.text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and number not in self.prose
        ]

    def imports(self, known) -> Iterator[str]:
        """Yield the modules of the package that this one imports, at any level."""
        for node in [*self.of(ast.Import, ast.ImportFrom), *ast.walk(self.names)]:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name in known)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                names = [f"{base}.{alias.name}" for alias in node.names]
                yield from (name for name in names if name in known)
                if base in known and any(name not in known for name in names):
                    yield base
        yield from (name for name in self._imported_by_calls() if name in known)

    def _imported_by_calls(self) -> Iterator[str]:
        """Yield what import_module("..wing.file", ...) and __import__ name as a constant."""
        for node in self.of(ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and node.args:
                text = getattr(node.args[0], "value", None)
                if isinstance(text, str):
                    module = text.lstrip(".")
                    yield self._base(ast.ImportFrom(module, [], len(text) - len(module)))

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])


def docstring_of(node) -> ast.Expr | None:
    """Return the docstring of a module, class or function."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        return first if isinstance(first.value.value, str) else None
    return None


def lines_of(nodes) -> set[int]:
    """Return the numbers of the lines on which these nodes stand."""
    return {number for node in nodes for number in range(node.lineno, node.end_lineno + 1)}


class Package:
    """All modules of a package, and what they are to each other."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.modules: dict[str, Module] = {}
        for path in sorted(folder.rglob("*.py")):
            parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            self.modules[name] = Module(name, path, path.read_text(), is_package)

    def place(self, module: Module, node) -> str:
        """Return file:line of a node."""
        return f"{module.path.relative_to(self.folder)}:{node.lineno}"

    # ---- imports ---------------------------------------------------------------------------------

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """{module: the modules of the package that it imports}."""
        return {
            name: set(module.imports(self.modules)) - {name}
            for name, module in self.modules.items()
        }

    @cached_property
    def components(self) -> list[list[str]]:
        """Strongly connected components of the imports, each after what it imports."""
        return components(self.imports)

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
    def wing_imports(self) -> dict[str, set[str]]:
        """{wing: the wings beside it that it imports}; a wing is a folder within a room."""
        found = defaultdict(set)
        for source, targets in self.imports.items():
            for target in targets:
                here, there = self._beside(source, target)
                if here is not None:
                    found[here].add(there)
        return {wing: found[wing] for wing in sorted({*found, *set().union(*found.values())})}

    def _beside(self, source: str, target: str):
        """Return the folders beside each other in which two modules are; (None, None) if not so."""
        one, other = source.split("."), target.split(".")
        shared = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), None)
        if shared is None or shared < 2:  # one is the folder of the other; rooms
            return None, None
        here, there = ".".join(one[: shared + 1]), ".".join(other[: shared + 1])
        are_folders = all(self.modules[name].is_package for name in (here, there))
        return (here, there) if are_folders else (None, None)

    @property
    def circles_of_wings(self) -> list[list[str]]:
        """Groups of wings that import each other, directly or round."""
        found = components(self.wing_imports)
        return [sorted(component) for component in found if len(component) > 1]

    def imports_between(self, one: str, other: str) -> list[str]:
        """Return "source imports target" for each import of one folder from the other."""
        return [
            f"{source} imports {target}"
            for source, targets in self.imports.items()
            for target in sorted(targets)
            if f"{source}.".startswith(f"{one}.") and f"{target}.".startswith(f"{other}.")
        ]

    # ---- classes ---------------------------------------------------------------------------------

    @cached_property
    def classes(self) -> dict[str, list[tuple[Module, ast.ClassDef]]]:
        """{name: where classes of this name are defined}."""
        found = defaultdict(list)
        for module in self.modules.values():
            for node in module.of(ast.ClassDef):
                found[node.name].append((module, node))
        return found

    @cached_property
    def stubs(self) -> dict[str, ast.ClassDef]:
        """{name: the class} of the stubs that describe classes, not rooms."""
        return {
            node.name: node
            for path in sorted(self.folder.rglob("*.pyi"))
            if path.stem != "__init__"
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef)
        }

    @property
    def duplicate_classes(self) -> list[str]:
        """Names that several classes have."""
        return sorted(name for name, places in self.classes.items() if len(places) > 1)

    def bases(self, name: str) -> list[str]:
        """Return the names of the classes of the package that this one derives from directly."""
        found = []
        for module, node in self.classes[name]:
            for base in node.bases:
                text = ast.unparse(base).split(".")[-1].split("[")[0]
                if text in self.classes and text != name:
                    found.append(text)
        return found

    def ancestors(self, name: str) -> set[str]:
        """Return this class and all classes of the package that it derives from."""
        return {name}.union(*map(self.ancestors, self.bases(name)))

    def given(self, name: str) -> list[ast.ClassDef]:
        """Return the stubs from which a type checker sees this class derive."""
        known = {}
        for module, node in self.classes[name]:
            texts = [ast.unparse(base) for base in node.bases]
            for imported in module.of(ast.ImportFrom):
                for alias in imported.names:
                    if alias.name in self.stubs and (alias.asname or alias.name) in texts:
                        known[alias.name] = self.stubs[alias.name]
        return list(known.values())

    def depth(self, name: str) -> int:
        """Return how many classes of the package lie on the longest way up, this one included."""
        return 1 + max(map(self.depth, self.bases(name)), default=0)

    @property
    def deepest_class(self) -> tuple[int, str]:
        """(depth, name) of the class with the longest way up inside of the package."""
        return max((self.depth(name), name) for name in self.classes)

    def own_methods(self, name: str) -> set[str]:
        """Return the names of the functions that the body of this class defines."""
        return {
            item.name
            for _, node in self.classes[name]
            for item in node.body
            if isinstance(item, FUNCTIONS)
        }

    def family(self, name: str) -> list[ast.ClassDef]:
        """Return the bodies of a class and of all that it derives from in the package."""
        above = [body for base in self.bases(name) for body in self.family(base)]
        return [*(node for _, node in self.classes[name]), *self.given(name), *above]

    def methods(self, name: str) -> set[str]:
        """Return the names of the functions of a class, with inherited ones."""
        return {
            item.name
            for body in self.family(name)
            for item in body.body
            if isinstance(item, FUNCTIONS)
        }

    def attributes(self, name: str) -> set[str]:
        """Return what its functions set on `self` and its bodies annotate, with inherited ones.

        Fields of a frozen dataclass are values that its caller passes, and do not count.
        """
        found = set()
        for body in self.family(name):
            found |= {node.attr for node in ast.walk(body) if is_set_on_self(node)}
            if not is_frozen(body):
                found |= set(fields_of(body))
        return found

    def public_members(self, name: str) -> set[str]:
        """Return what a user can ask of an object of this class: methods, names, attributes."""
        names = self.methods(name) | self.attributes(name)
        for body in self.family(name):
            for item in body.body:
                if isinstance(item, ast.Assign):
                    names |= {each.id for each in item.targets if isinstance(each, ast.Name)}
        return {each for each in names if not each.startswith("_")}


def is_frozen(body: ast.ClassDef) -> bool:
    """Return True if objects of this class are values: a frozen dataclass, a tuple with names."""
    texts = [ast.unparse(each) for each in (*body.decorator_list, *body.bases)]
    return any("frozen=True" in text or text.endswith("NamedTuple") for text in texts)


def fields_of(body: ast.ClassDef) -> Iterator[str]:
    """Yield the names that the body of a class annotates."""
    for item in body.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id


def is_set_on_self(node) -> bool:
    """Return True for `self.name` that is set."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of a graph, each after what it leads to.

    Source: Tarjan, Depth-first search and linear graph algorithms, 1972.
    """
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name):
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in sorted(graph[name]):
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            at = stack.index(name)
            found.append(stack[at:])
            del stack[at:]

    for name in graph:
        if name not in order:
            visit(name)
    return found
