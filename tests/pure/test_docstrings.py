"""The docstrings of the public names are in NumPy's sections, and agree with the signatures."""

import ast
import enum
import inspect
import re

import pytest
import sources

import shardkit as sk

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

SECTIONS = ("Parameters", "Attributes", "Returns", "Raises", "Notes", "References", "Examples")
NAMESPACES = (sk, sk.nn, sk.nn.ops, sk.models, sk.schedules)
# Whose methods have all of their parameters documented, too.
MAIN = (
    sk.ShardedModel,
    sk.ShardedOptimizer,
    sk.Training,
    sk.Mesh,
    sk.Task,
    sk.Callback,
    sk.Samples,
    sk.Metric,
    sk.ParameterGroup,
    sk.OptimizationInputData,
)


def exported():
    """Return {name: class or function} of the public namespaces."""
    return {
        f"{namespace.__name__}.{name}": value
        for namespace in NAMESPACES
        for name in namespace.__all__
        if inspect.isclass(value := getattr(namespace, name)) or inspect.isfunction(value)
    }


def methods_of(kind):
    """Yield (name, function) of the public methods that a user sees of a class."""
    for name, member in inspect.getmembers(kind):
        function = inspect.unwrap(getattr(member, "__func__", member))
        if not name.startswith("_") and inspect.isfunction(function):
            if function.__module__.startswith("shardkit"):
                yield name, function


def documented_things():
    """Yield (name, thing, docstring) of all exported classes, their methods, and functions."""
    for name, value in exported().items():
        yield name, value, value.__doc__
        if inspect.isclass(value):
            for method, function in methods_of(value):
                yield f"{name}.{method}", function, function.__doc__


def sections_of(text):
    """Return {title: lines} of a docstring; "" is what stands before the first."""
    found, title = {"": []}, ""
    lines = inspect.cleandoc(text or "").split("\n")
    for line, below in zip(lines, [*lines[1:], ""]):
        if below and set(below) == {"-"} and len(below) >= 3 and line.strip():
            title = line
            assert title not in found, f"two sections {title}"
            found[title] = []
        elif not (line and set(line) == {"-"}):
            found[title].append(line)
    return found


def parameters_of(text):
    """Return the names that the section Parameters has, without stars."""
    lines = sections_of(text).get("Parameters", [])
    return [
        name.lstrip("*") for line in lines if line and line[0] != " " for name in line.split(", ")
    ]


def arguments_of(thing):
    """Return the names of the parameters of a function or of a class's constructor."""
    if inspect.isclass(thing) and issubclass(thing, (Exception, enum.Enum)):
        return []
    try:
        parameters = inspect.signature(thing).parameters
    except ValueError:  # a class of C
        return []
    return [name for name in parameters if name not in ("self", "cls")]


def inherited(thing):
    """Return the names that the docstrings of a class, or of those it derives from, document."""
    if not inspect.isclass(thing):
        return parameters_of(thing.__doc__)
    return [name for kind in thing.__mro__ for name in parameters_of(vars(kind).get("__doc__"))]


def test_the_sections_are_those_of_numpy():
    wrong = [
        f"{name}: {title}"
        for name, _, text in documented_things()
        for title in sections_of(text)
        if title and title not in SECTIONS
    ]
    assert not wrong


def test_sections_stand_in_one_order():
    wrong = [
        name
        for name, _, text in documented_things()
        if (titles := [title for title in sections_of(text) if title])
        != sorted(titles, key=SECTIONS.index)
    ]
    assert not wrong


def test_a_documented_parameter_is_one():
    wrong = [
        f"{name}: {extra}"
        for name, thing, text in documented_things()
        if not (inspect.isclass(thing) and issubclass(thing, Exception))
        if (extra := set(parameters_of(text)) - set(arguments_of(thing)))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_parameter_of_a_constructor_is_documented():
    wrong = [
        f"{name}: {missing}"
        for name, value in exported().items()
        if inspect.isclass(value)
        if (missing := set(arguments_of(value)) - set(inherited(value)))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_parameter_of_a_function_is_documented():
    wrong = [
        f"{name}: {missing}"
        for name, value in exported().items()
        if inspect.isfunction(value) and not name.startswith("shardkit.nn.")
        if (missing := set(arguments_of(value)) - set(parameters_of(value.__doc__)))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", MAIN, ids=lambda kind: kind.__name__)
def test_every_parameter_of_a_main_method_is_documented(kind):
    wrong = [
        f"{name}: {missing}"
        for name, function in methods_of(kind)
        if (missing := set(arguments_of(function)) - set(parameters_of(function.__doc__)))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_list_is_in_another_form():
    """A name, two spaces and a text were the form of lists before."""
    wrong = [
        f"{name}: {line}"
        for name, thing, text in documented_things()
        for lines in sections_of(text).values()
        for line in lines
        if (entry := re.match(r"(\*{0,2}\w+(?:, \w+)*)  +\S", line))
        and set(entry[1].split(", ")) & set(arguments_of(thing))
    ]
    assert not wrong, "\n".join(wrong)


def gives_back(function):
    """Return True if a function, not one inside of it, returns a value, or yields."""
    found = list(function.body)
    for node in found:
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            found.extend(ast.iter_child_nodes(node))
    return False


def is_stub(function):
    """Return True if a function has nothing but a docstring, or raises that it has nothing else."""
    return all(
        isinstance(node, ast.Raise)
        or isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        for node in function.body
    )


def wrong_returns(nodes):
    """Yield the functions among these nodes that say "Return ..." and return nothing."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and (ast.get_docstring(node) or "")[:6] == "Return":
            returns_none = node.returns is not None and ast.unparse(node.returns) == "None"
            if returns_none or not (gives_back(node) or is_stub(node)):
                yield node.name


@pytest.mark.parametrize(
    "body, is_wrong",
    [
        ("f(x)", True),
        ("f(x)\n    return", True),
        ("for y in x:\n        def g():\n            return y\n        g()", True),
        ("if x:\n        return x", False),
        ("with x:\n        yield", False),
        ("raise NotImplementedError", False),
    ],
)
def test_a_function_that_returns_nothing_is_seen(body, is_wrong):
    code = f'def h(x):\n    """Return when x is there."""\n    {body}\n'
    assert list(wrong_returns(ast.walk(ast.parse(code)))) == ["h"] * is_wrong


def test_what_returns_nothing_says_what_it_does():
    wrong = [
        f"{path}: {name}"
        for path, module in sources.files()
        if path.parts[:2] != ("array", "cpu")  # what it compiles returns
        for name in wrong_returns(module.nodes)
    ]
    assert not wrong, "\n".join(wrong)


def test_texts_are_sentences():
    """A list that became a section leaves no text behind that ends in the middle."""
    wrong = [
        f"{name}: {title}"
        for name, _, text in documented_things()
        for title, lines in sections_of(text).items()
        if title in ("", "Notes", "References")
        if (said := [line for line in lines if line.strip() and not line.startswith(" ")])
        if not said[-1].rstrip().endswith((".", ":", ")", "`"))
    ]
    assert not wrong, "\n".join(wrong)
