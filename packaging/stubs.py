"""Write what type checkers read of the rooms: python packaging/stubs.py

A room lists its names once, in the table of its __init__.py (shardkit/public.py). From the table
comes the __init__.pyi beside it. tests/pure/test_types.py compares the two.
"""

import ast
from pathlib import Path

from shardkit.public import places_of

ROOT = Path(__file__).resolve().parents[1]
HEAD = "# Written by packaging/stubs.py, from the table in __init__.py.\n"


def stubs() -> dict[Path, str]:
    """Return {path: text} of the stubs of all rooms that have a table."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "shardkit").rglob("__init__.py"))
    }
    return {
        path.with_suffix(".pyi"): "".join([HEAD, *_imports(table_of(tree)), *_constants(tree)])
        for path, tree in trees.items()
        if table_of(tree)
    }


def table_of(tree: ast.Module) -> dict[str, str]:
    """Return the table of a room; {} if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in ("public_names", "import_names"):
                return ast.literal_eval(node.value.args[1])
    return {}


def _imports(table):
    """Yield the imports; `as` tells type checkers that a name is public (PEP 484)."""
    renamed = ""
    for file, names in table.items():
        places = places_of({file: names})
        same = [there for name, (_, there) in places.items() if name == there]
        others = {name: there for name, (_, there) in places.items() if name != there}
        listed = ["{0} as {0}".format(name) for name in same] + [there for there in others.values() if there not in same]
        text = listed[0] if len(listed) == 1 else _lines(listed)
        yield f"from {'.' if file == '.' else '.' + file} import {text}\n"
        renamed += "".join(f"\n{name} = {there}\n" for name, there in others.items())
    yield renamed


def _lines(names):
    return "(\n" + "".join(f"    {name},\n" for name in names) + ")"


def _constants(tree):
    """Yield what a room defines itself: constants, such as the version."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield f"\n{node.targets[0].id}: {type(node.value.value).__name__}\n"


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
