"""What type checkers see of the package: annotations of all that is public, and a user's script."""

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import user_script

import shardkit as sk
from shardkit.testing.nn import methods, operators

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shardkit"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Lists in pyproject.toml that may only shrink: modules that are not checked, or not for None.
MOST_UNCHECKED = 70
MOST_WITHOUT_OPTIONAL = 35
NAMESPACES = (sk, sk.nn, sk.nn.ops, sk.models, sk.schedules)
SPECIAL = ("__init__", "__call__", "__getitem__", "__iter__", "__len__", "__array__", "forward")


def public_objects():
    """Yield (name, object) of what the public namespaces export."""
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            value = getattr(namespace, name)
            if not inspect.ismodule(value):
                yield f"{namespace.__name__}.{name}", value


def functions_of(value):
    """Yield the functions of a class that this package defines and a user may call, or itself."""
    if inspect.isfunction(value):
        yield value
    if inspect.isclass(value):
        for base in value.__mro__:
            for name, member in vars(base).items():
                if not name.startswith("_") or name in SPECIAL:
                    member = getattr(member, "__func__", member)
                    member = member.fget if isinstance(member, property) else member
                    if inspect.isfunction(member):
                        yield inspect.unwrap(member)


def test_everything_public_is_annotated():
    missing, seen = set(), set()
    for name, value in public_objects():
        for function in functions_of(value):
            path = Path(function.__code__.co_filename)
            if PACKAGE not in path.parents or function.__name__ == "<lambda>":
                continue
            seen.add(function)
            signature = inspect.signature(function)
            annotations = [
                parameter.annotation
                for parameter in signature.parameters.values()
                if parameter.name not in ("self", "cls")
            ]
            if inspect.Signature.empty in (*annotations, signature.return_annotation):
                missing.add(f"{name}: {function.__qualname__}")
    # What operators.py and methods.py make for Tensor stands in tensor_methods.pyi.
    missing = {text for text in missing if "<locals>" not in text}
    assert len(seen) > 500 and not missing, "\n".join(sorted(missing))


def stub_methods():
    """Return {name: ast.arguments} of tensor_methods.pyi, overloads as a list."""
    tree = ast.parse((PACKAGE / "nn" / "tensor_methods.pyi").read_text())
    (body,) = (node.body for node in tree.body if getattr(node, "name", "") == "TensorMethods")
    found = {}
    for node in body:
        found.setdefault(node.name, []).append(node.args)
    return found


def test_the_stub_of_tensor_has_every_method_that_is_given_to_it():
    binary = [f"__{side}{name}__" for name in operators.BINARY for side in ("", "r")]
    others = (*operators.COMPARISONS, *operators.NUMBERS, *operators.OTHERS)
    given = {*methods.PLAIN, *methods.METHODS, "T", "mT", *binary, *(f"__{n}__" for n in others)}
    assert set(stub_methods()) == given


def test_the_stub_of_tensor_has_the_arguments_of_its_methods():
    wrong = []
    for name, (arguments, *overloads) in stub_methods().items():
        method = inspect.getattr_static(sk.nn.Tensor, name)
        if overloads or name.startswith("__") or not inspect.isfunction(method):
            continue  # max and min have two forms
        have = [p for p in inspect.signature(method).parameters.values()][1:]
        named = [*arguments.args[1:], *filter(None, [arguments.vararg])]
        defaults = [ast.literal_eval(default) for default in arguments.defaults]
        if [p.name for p in have] != [argument.arg for argument in named]:
            wrong.append(f"{name}: {have}")
        if [p.default for p in have if p.default is not p.empty] != defaults:
            wrong.append(f"{name}: {have} with {defaults}")
    assert not wrong


def test_the_script_of_a_user_names_everything_public():
    tree = ast.parse(inspect.getsource(user_script))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "sk"
    }
    assert set(sk.__all__) <= used, set(sk.__all__) - used


def test_the_script_of_a_user_runs(capsys):
    user_script.main()
    losses = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert len(losses) == 3 and losses[1] == losses[2]


@pytest.mark.thorough
def test_the_script_of_a_user_passes_pyright():
    """mypy checks it too (jobs/test.sh). pyright is not installed with other packages: it brings
    Node.js, and the rest of it from elsewhere when it first runs.
    """
    pytest.importorskip("pyright")
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--pythonpath",
        sys.executable,
        user_script.__file__,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_checked_only_shrinks():
    unchecked, without_optional = (
        override["module"]
        for key in ("ignore_errors", "strict_optional")
        for override in SETTINGS["tool"]["mypy"]["overrides"]
        if key in override
    )
    assert len(unchecked) <= MOST_UNCHECKED and len(without_optional) <= MOST_WITHOUT_OPTIONAL
    named = {*unchecked, *without_optional}
    public = {value.__module__ for _, value in public_objects() if inspect.isclass(value)}
    assert not named & public
    missing = [
        name for name in named if not list(PACKAGE.parent.glob(name.replace(".", "/") + "*"))
    ]
    assert not missing


def test_the_package_says_that_it_is_typed():
    data = SETTINGS["tool"]["setuptools"]["package-data"]
    assert (PACKAGE / "py.typed").exists() and {"py.typed", "nn/*.pyi", "**/__init__.pyi"} <= set(
        data["shardkit"]
    )
