"""Sharded models and optimizers have the members that docs/api/models.md has, and no others."""

import ast
from pathlib import Path

import pytest
import sources
from sources import structure

import shardkit as sk

pytestmark = pytest.mark.xdist_group("sources")  # they read the package once

ROOT = Path(__file__).resolve().parents[2]
FACES = {
    "ShardedModel": [
        sk.DDPModel,
        sk.ZeRO1Model,
        sk.ZeRO2Model,
        sk.FSDPModel,
        sk.PipelineParallelModel,
        sk.TensorParallelModel,
        sk.HybridShardedModel,
    ],
    "ShardedOptimizer": [
        sk.DDPOptimizer,
        sk.ZeRO1Optimizer,
        sk.ZeRO2Optimizer,
        sk.FSDPOptimizer,
        sk.PipelineParallelOptimizer,
        sk.TensorParallelOptimizer,
        sk.HybridShardedOptimizer,
    ],
}
EVERY_FACE = pytest.mark.parametrize("face", FACES)
# What the parts of a model are called, and no member of it is.
INSIDE = {
    "engine",
    "history",
    "checkpoints",
    "policy",
    "companions",
    "weights",
    "state",
    "learning",
}
MOST_LINES = 3  # of a member of a sharded model, which asks a part


def public(names):
    return {name for name in names if not name.startswith("_")}


def made(backend, kind):
    """An object of this class that has been used."""
    config = sk.ShardingConfiguration(backend, optimizer=sk.SGD())
    net = sk.models.MLP([4, 8, 1])
    if issubclass(kind, sk.ShardedModel):
        return kind(net, config)
    return kind(sk.SGD(), config, model=net)


def test_the_page_promises_members_of_these_classes_alone():
    assert set(structure.contracts()) == set(FACES)


@EVERY_FACE
def test_the_members_are_those_that_the_page_promises(face):
    promised = structure.members_promised(face)
    assert sources.package().public_members(face) == promised and len(promised) > 20


@pytest.mark.parametrize(
    "kind", [kind for kinds in FACES.values() for kind in kinds], ids=lambda kind: kind.__name__
)
def test_every_implementation_has_these_members_and_no_others(kind):
    face = "ShardedModel" if issubclass(kind, sk.ShardedModel) else "ShardedOptimizer"

    def run(backend):
        used = made(backend, kind)
        return public(dir(used))

    assert sk.run_ranks(1, run) == [structure.members_promised(face)]


@EVERY_FACE
def test_a_face_derives_from_nothing_and_an_implementation_from_its_face(face):
    face, kinds = getattr(sk, face), FACES[face]
    assert face.__bases__ == (object,)
    assert all(kind.__bases__ == (face,) for kind in kinds)


def is_longer(member):
    """Return True if the body of a function, its docstring left out, has too many lines."""
    body = member.body[1:] if ast.get_docstring(member) is not None else member.body
    return bool(body) and body[-1].end_lineno - body[0].lineno + 1 > MOST_LINES


def test_each_member_of_a_sharded_model_asks_a_part():
    ((_, node),) = sources.package().classes["ShardedModel"]
    members = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    assert not [item.name for item in members if public([item.name]) and is_longer(item)]
    assert len(members) > 40


def is_stub(node):
    """Return True for a function that does nothing but to say that another class has it."""
    if not isinstance(node, ast.FunctionDef):
        return False
    *docstring, last = node.body
    text = ast.unparse(last)
    return len(docstring) < 2 and "NotImplementedError" in text and isinstance(last, ast.Raise)


def mixed(package, folder=""):
    """Return what is glued together in a folder: classes of several bases, and stubs."""
    found = [
        name
        for name, places in package.classes.items()
        for module, _ in places
        if folder in str(module.path) and len(package.bases(name)) > 1
    ]
    return found + [
        node.name
        for module in package.modules.values()
        if folder in str(module.path)
        for node in module.nodes
        if is_stub(node)
    ]


@pytest.mark.parametrize(
    "code, found",
    [
        ("class A: pass\nclass B: pass\nclass C(A, B): pass", ["C"]),
        ("class A:\n    def f(self):\n        raise NotImplementedError", ["f"]),
        (
            "class A:\n    def f(self):\n        'See B.'\n        raise NotImplementedError()",
            ["f"],
        ),
        ("class A: pass\nclass B(A): pass", []),
        ("class A(ValueError, OSError):\n    def f(self): return self.x", []),
    ],
)
def test_what_is_glued_together_is_found(tmp_path, code, found):
    (tmp_path / "__init__.py").touch()
    (tmp_path / "a.py").write_text(code)
    assert mixed(structure.Package(tmp_path)) == found


def test_models_and_optimizers_hold_parts_and_are_not_glued_together():
    assert not mixed(sources.package(), "parallel/model/")


def asked_of_models(tree):
    """Return what code asks of a variable that is named after a model and that no model has."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in INSIDE
        and ast.unparse(node.value).split(".")[-1].lstrip("_") in ("model", "sharded")
    ]


@pytest.mark.parametrize(
    "code, found",
    [
        ("model.checkpoints.save()", ["model.checkpoints"]),
        ("self._run.model.history.last_loss = 1", ["self._run.model.history"]),
        ("parts_of(model).history", []),
        ("model.train(x, y)", []),
    ],
)
def test_a_part_that_is_asked_of_the_model_itself_is_found(code, found):
    assert asked_of_models(ast.parse(code)) == found


def test_the_package_reaches_the_parts_of_a_model_by_their_door():
    wrong = [
        f"{path}: {text}"
        for path, module in sources.files()
        for text in asked_of_models(module.tree)
    ]
    scripts = [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("examples/*.py")]
    for path in scripts:
        wrong += [f"{path.name}: {text}" for text in asked_of_models(ast.parse(path.read_text()))]
    assert scripts and not wrong
