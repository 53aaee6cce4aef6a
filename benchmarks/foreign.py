"""What code does to objects that are not its own: frames it asks for, attributes it sets.

    frame = _getframe()             a call for a frame, by whichever name the function is imported
    self._group.quick = verbs       an attribute of another object: it has an owner, who sets it
    self.group.owner.verbs = x      an attribute of a part of another object: two owners are passed
    setattr(model, name, value), vars(model)[name] = value     the same by other spellings

An object that the same function has made is its own: `made = cls.__new__(cls)`, `call = Call()`.
"""

import ast
from collections.abc import Iterator

from parsed import FUNCTIONS

FRAMES = {
    "_getframe": "sys",
    "_getframemodulename": "sys",
    "_current_frames": "sys",
    "currentframe": "inspect",
    "stack": "inspect",
    "walk_stack": "traceback",
    "extract_stack": "traceback",
}
MAKERS = ("__new__", "copy", "deepcopy", "replace")  # calls that make an object
# attributes of arrays and of functions of C libraries, which have no owner in the package
OF_OTHERS = ("argtypes", "restype", "errcheck", "writeable", "shape", "strides", "dtype")


# ---- frames --------------------------------------------------------------------------------------


def frames(package) -> list[str]:
    """Return file:line where a function that returns frames is called, or handed on."""
    return [
        package.place(module, node)
        for module in package.modules.values()
        for node in _uses_of_frames(module)
    ]


def _uses_of_frames(module) -> Iterator[ast.AST]:
    homes = _names_of_modules(module)
    named = {
        alias.asname or alias.name
        for node in module.of(ast.ImportFrom)
        for alias in node.names
        if not node.level and FRAMES.get(alias.name) == node.module
    }
    for node in module.of(ast.Name):
        if node.id in named:
            yield node
    for node in module.of(ast.Attribute):
        if isinstance(node.value, ast.Name) and FRAMES.get(node.attr) == homes.get(node.value.id):
            if node.attr in FRAMES:
                yield node
    for node in module.of(ast.Call):  # getattr(sys, "_getframe")
        texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
        if _name_of(node.func) == "getattr" and any(text in FRAMES for text in texts):
            yield node


def _names_of_modules(module) -> dict[str, str]:
    return {
        alias.asname or alias.name: alias.name
        for node in module.of(ast.Import)
        for alias in node.names
    }


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
    return isinstance(target, ast.Name) and target.id in own.get(node, ("self", "cls"))


def _is_part(target) -> bool:
    """Return True for a.b and self.a.b, whose attribute is set; False for a and self.a."""
    if not isinstance(target, ast.Attribute):
        return False
    return not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls"))


def _own_objects(module) -> dict[ast.AST, set[str]]:
    """Return {node in a function: the names of objects that are its own}."""
    found: dict[ast.AST, set[str]] = {}
    for function in module.of(*FUNCTIONS):  # outer functions first
        nodes = list(ast.walk(function))
        made = {"self", "cls"} | found.get(function, set())
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                if _makes(node.value.func):
                    made |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        found |= dict.fromkeys(nodes, made)
    return found


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
