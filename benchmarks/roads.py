"""Roads: what a reader opens to follow one technique, as docs/hops.md lists it.

A road is a paragraph of that page: its title, then one line for each file with the definitions in
it. Its cost is the number of files, of definitions, and of nodes in their syntax trees.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROADS = "docs/hops.md"


@dataclass(frozen=True)
class Road:
    """{file, from the checkout: the names of the definitions that are read in it}."""

    files: dict[str, tuple[str, ...]]

    def definitions(self, package) -> list[ast.AST]:
        """Return the syntax trees of what is read."""
        modules = {module.path: module for module in package.modules.values()}
        root = package.folder.parent
        return [
            definition(modules[root / file].tree, name)
            for file, names in self.files.items()
            for name in names
        ]

    def measured(self, package) -> dict[str, int]:
        """Return {what: how many}. What stands in a definition that is read too counts once."""
        found = self.definitions(package)
        inside = {id(node) for each in found for node in ast.walk(each) if node is not each}
        nodes = sum(len(list(ast.walk(each))) for each in found if id(each) not in inside)
        return {"files": len(self.files), "definitions": len(found), "nodes": nodes}


def read_roads(page: Path) -> dict[str, Road]:
    """Return {title: road} of the page."""
    roads: dict[str, dict] = {}
    title = None
    for line in page.read_text().splitlines():
        if heading := re.fullmatch(r"\*\*(.+?)\.?\*\*", line):
            title = heading[1]
        elif title and (entry := re.fullmatch(r"- `(shardkit/[\w/.]+)`: (.*)", line)):
            names = re.findall(r"`([\w.]+)`", entry[2])
            roads.setdefault(title, {})[entry[1]] = tuple(names)
    return {title: Road(files) for title, files in roads.items()}


def definition(tree: ast.AST, dotted: str) -> ast.AST:
    """Return the syntax tree of a class, a function, a method or a table by its dotted name."""
    node = tree
    for part in dotted.split("."):
        found = [each for each in _body(node) if part in _names(each)]
        if not found:
            raise LookupError(f"{dotted} is not defined there any more; {ROADS} lists it")
        node = found[0]
    return node


def _body(node):
    """Yield what is defined in a body, in its branches too."""
    for each in ast.iter_child_nodes(node):
        yield each
        if isinstance(each, (ast.If, ast.Try, ast.With)):
            yield from _body(each)


def _names(node) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
