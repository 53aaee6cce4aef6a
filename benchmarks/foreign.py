"""What code does to objects that are not its own: frames it asks for, attributes it sets.

    frame = _getframe()             a call for a frame, however the function is reached
    self._group.quick = verbs       an attribute of another object: it has an owner, who sets it
    self.group.owner.verbs = x      an attribute of a part of another object: two owners are passed
    setattr(model, name, value), vars(model)[name] = value     the same by other spellings

An object that the same function has made is its own: `made = cls.__new__(cls)`, `call = Call()`. So
are its `self` and `cls`. A name that it also binds to something else stands for no such object.
"""

import ast
import re
from collections.abc import Iterator

from parsed import FUNCTIONS

# Names that stand for a function that returns frames, wherever they stand.
FRAMES = (
    "_getframe",
    "_getframemodulename",
    "_current_frames",
    "currentframe",
    "extract_stack",
    "format_stack",
    "print_stack",
    "walk_stack",
)
NAMES_FRAMES = re.compile(rf"\b({'|'.join(FRAMES)})\b")  # in a text: getattr(sys, "_getframe")
AMBIGUOUS = {"stack": "inspect"}  # names that do so only in their module
MAKERS = ("__new__", "copy", "deepcopy", "replace")  # calls that make an object
# attributes of arrays and of functions of C libraries, which have no owner in the package
OF_OTHERS = ("argtypes", "restype", "errcheck", "writeable", "shape", "strides", "dtype")


# ---- frames --------------------------------------------------------------------------------------


def frames(package) -> list[str]:
    """Return file:line where a function that returns frames is named, to call it or hand it on."""
    return [
        package.place(module, node)
        for module in package.modules.values()
        for node in _uses_of_frames(module)
    ]


def _uses_of_frames(module) -> Iterator[ast.AST]:
    other_names = _other_names_of_frames(module)
    homes = _names_of_modules(module)
    prose = {docstring.value for _, docstring in module.docstrings()}
    for node in module.of(ast.Name):
        if node.id in FRAMES or node.id in other_names:
            yield node
    for node in module.of(ast.Attribute):
        if node.attr in FRAMES or _is_of(AMBIGUOUS.get(node.attr), node.value, homes):
            yield node
    for node in module.of(ast.Constant):
        if isinstance(node.value, str) and node not in prose and NAMES_FRAMES.search(node.value):
            yield node
    for node in module.of(ast.Call):  # getattr(inspect, "stack")
        if _name_of(node.func) == "getattr" and len(node.args) > 1:
            name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and _is_of(AMBIGUOUS.get(name), node.args[0], homes):
                yield node


def _other_names_of_frames(module) -> set[str]:
    """Return the names by which a file imports such functions, when they are not their own."""
    found = set()
    for node in module.of(ast.ImportFrom):
        ambiguous = {name for name, home in AMBIGUOUS.items() if home == node.module}
        for alias in node.names:
            if alias.name in FRAMES or alias.name in ambiguous:
                found.add(alias.asname or alias.name)
            elif alias.name == "*":
                found |= ambiguous
    return found


def _names_of_modules(module) -> dict[str, str]:
    """Return {name: the module that it stands for}, by an import or an assignment."""
    homes = {
        alias.asname or alias.name: alias.name
        for node in module.of(ast.Import)
        for alias in node.names
    }
    for node in module.of(ast.Assign):
        if isinstance(node.value, ast.Name) and node.value.id in homes:
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            homes |= dict.fromkeys(names, homes[node.value.id])
    return homes


def _is_of(home: str | None, node, homes) -> bool:
    """Return True if an expression stands for this module: its name, or a text that names it."""
    return home is not None and any(
        homes.get(getattr(each, "id", None)) == home or getattr(each, "value", None) == home
        for each in ast.walk(node)
    )


# ---- attributes ----------------------------------------------------------------------------------


def set_elsewhere(package) -> list[str]:
    """Return file:line where an attribute is set on an object that is not the code's own."""
    return [
        f"{package.place(module, node)} {text}"
        for module in package.modules.values()
        for node, text, _ in _set_in(module)
    ]


def set_on_parts_of_others(package) -> list[str]:
    """Return file:line where an attribute is set on a part of such an object."""
    return [
        f"{package.place(module, node)} {text}"
        for module in package.modules.values()
        for node, text, is_part in _set_in(module)
        if is_part
    ]


def _set_in(module) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield (node, what is set, whether it belongs to a part of another object)."""
    own = _own_objects(module)
    for node in module.of(ast.Attribute):
        if isinstance(node.ctx, ast.Load) or node.attr in OF_OTHERS or _is_dunder(node.attr):
            continue
        if not _is_own(node, node.value, own):
            yield node, ast.unparse(node), _is_part(node.value)
    for node in module.of(ast.Subscript):  # vars(a)["x"] = 1, a.__dict__["x"] = 1
        if not isinstance(node.ctx, ast.Load) and (target := _whose_names(node.value)) is not None:
            if not _is_own(node, target, own):
                yield node, ast.unparse(node), _is_part(target)
    for node in module.of(ast.Call):
        if _name_of(node.func) == "update" and isinstance(node.func, ast.Attribute):
            target = _whose_names(node.func.value)
            if target is not None and not _is_own(node, target, own):
                yield node, ast.unparse(node), _is_part(target)
        if _name_of(node.func) in ("setattr", "delattr", "__setattr__") and len(node.args) > 1:
            is_on_super = _name_of(getattr(node.func, "value", None)) == "super"
            if not is_on_super and not _is_own(node, node.args[0], own):
                yield node, ast.unparse(node), _is_part(node.args[0])


def _whose_names(node) -> ast.expr | None:
    """Return the object whose table of attributes this is; None if it is something else."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return node.value
    is_call = isinstance(node, ast.Call) and _name_of(node.func) == "vars" and node.args
    return node.args[0] if is_call else None


def _is_own(node, target, own) -> bool:
    return isinstance(target, ast.Name) and target.id in own.get(node, ())


def _is_part(target) -> bool:
    """Return True for a.b and self.a.b, whose attribute is set; False for a and self.a."""
    if not isinstance(target, ast.Attribute):
        return False
    return not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"))


def _own_objects(module) -> dict[ast.AST, set[str]]:
    """Return {node in a function: the names of objects that are its own, whenever it is asked}.

    A name that the function binds to another object too, in a loop for example, is none of them.
    """
    found: dict[ast.AST, set[str]] = {}
    for function in module.of(*FUNCTIONS):  # outer functions first
        bindings = list(_bindings(function))
        others = {name for name, is_own in bindings if not is_own}
        made = {name for name, is_own in bindings if is_own}
        own = (found.get(function, set()) | made) - others
        found |= dict.fromkeys(ast.walk(function), own)
    return found


def _bindings(function) -> Iterator[tuple[str, bool]]:
    """Yield (name, whether to an object of the function's own) of each binding in a function."""
    nodes = list(_scope(function))
    made = set()
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
            if _is_made(node.value):
                made |= set(node.targets if isinstance(node, ast.Assign) else [node.target])
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, node in made or isinstance(node.ctx, ast.Del)
        elif isinstance(node, ast.arg):
            yield node.arg, node.arg in ("self", "cls")
        elif isinstance(node, ast.alias):
            yield node.asname or node.name, False
        elif isinstance(getattr(node, "name", None), str):  # except ... as name, case name, def
            yield node.name, False


def _scope(function) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without the bodies of functions in it."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, FUNCTIONS):
            waiting += ast.iter_child_nodes(node)


def _is_made(value) -> bool:
    """Return True for an expression whose object is new, or has no attributes to set."""
    if isinstance(value, ast.IfExp):
        return _is_made(value.body) and _is_made(value.orelse)
    if isinstance(value, ast.Call):
        return _makes(value.func)
    return value is None or isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Constant))


def _makes(function) -> bool:
    """Return True for what makes an object: a class, by its name, or a function of MAKERS."""
    name = _name_of(function)
    return name in (*MAKERS, "cls", "type") or name.lstrip("_")[:1].isupper()


def _name_of(function) -> str:
    """Return the last name of what is called: of a.b.c(), "c"; of type(self)(), "type"."""
    if isinstance(function, ast.Call):
        return _name_of(function.func)
    return getattr(function, "attr", None) or getattr(function, "id", "")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
