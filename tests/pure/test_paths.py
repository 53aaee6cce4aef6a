"""Paths that begin with ~ are those of the home folder, in every setting, command and call."""

import argparse
from pathlib import Path

import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.base import PATHS
from shardkit.testing.cli import Given, local_path, make_parser, trust_in
from shardkit.testing.ensemble import OnlySweep
from shardkit.testing.files import usable_path
from shardkit.testing.task import BUILT_IN, absolute_task, load_task
from shardkit.testing.train import configuration_of

FILES = {"FILE", "PATH", "INPUT"}
PLACES = {"path", "source", "target", "first", "second", "folder", "model", "cluster", "run_folder"}
PLACES |= {"settings", "output", "inputs"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield tmp_path / "home"
    assert not any(Path().glob("~*")), "a folder of that name was made"


def test_only_a_path_that_begins_with_it_is_changed(home):
    assert usable_path("~/a") == str(home / "a") and usable_path("~") == str(home)
    assert usable_path(Path("~/a")) == home / "a" and isinstance(usable_path(Path("~/a")), Path)
    assert usable_path("~root/a").endswith("/a") and not usable_path("~root/a").startswith("~")
    for same in ("a/~", "./~", "$HOME/a", "a~", "", None, 3, b"~", Path("a~")):
        assert usable_path(same) is same
    with pytest.raises(ConfigurationError, match="the home folder ~nobody.here is not known"):
        usable_path("~nobody.here/a")


def test_every_option_that_names_a_file_takes_it():
    _, commands = make_parser()
    options = [
        (name, action)
        for name, command in commands.items()
        for action in command._actions
        if not isinstance(action, (argparse._StoreTrueAction, argparse._HelpAction))
    ]
    files = [(n, a) for n, a in options if a.metavar in FILES or a.dest in PLACES]
    assert [f"{name} {a.dest}" for name, a in files if a.type is not local_path] == []
    assert len(files) > 30


@pytest.mark.parametrize("task", BUILT_IN)
def test_every_setting_that_names_a_file_takes_it(home, task):
    configuration = configuration_of(load_task(task))
    names = [
        name
        for name in configuration.keys()
        if name.endswith(("path", "folder", ".start")) or name == "run.task"
    ]
    for name in names:
        field = configuration.key(name)
        assert PATHS & field.metadata.keys(), name
        found = configuration().replace({name: "~/x"}).value(name)
        assert found in (str(home / "x"), (str(home / "x"),)), name
        if isinstance(field.default, tuple):
            found = configuration().replace({name: ["~/x", "y"]}).value(name)
            assert found == (str(home / "x"), "y")
    assert "run.folder" in names


def test_an_empty_path_is_refused_where_a_folder_is_written():
    """It would be the working folder, as of a variable of the shell that is not set."""
    configuration = configuration_of(load_task("table"))
    for made, key in ((configuration, "run.folder"), (OnlySweep, "sweep.folder")):
        with pytest.raises(ConfigurationError, match=f"{key} = ''; wanted a path"):
            made().replace({key: ""})
    with pytest.raises(argparse.ArgumentTypeError, match="wanted a path"):
        local_path("")


def test_tasks_and_trust_take_it(home):
    (home / "mine.py").write_text("")
    assert absolute_task("~/mine.py:Net") == f"{home}/mine.py:Net"
    assert trust_in(["~"], "~/mine.py:Net").paths == (home, home / "mine.py")
    given = Given({}, {"run.task": "~/mine.py:Net"})
    assert given.first("run.task") == f"{home}/mine.py:Net"


def test_calls_in_python_take_it(home):
    x = numpy.ones((8, 3), "float32")

    def on_rank(backend):
        settings = {"run.steps": 1, "batch.sequences": 2, "batch.micro_batch": 1}
        model = sk.models.MLP([3, 4, 1])
        training = sk.Training(
            model, (x, x[:, :1]), folder=Path("~/run"), backend=backend, settings=settings
        )
        training.run()
        training.predict(x, "~/out.h5")
        training.model.save_model("~/saved")
        training.model.load_model("~/saved")
        whole = sk.load("~/run")
        sk.save_safetensors(whole, "~/net.safetensors")
        sk.load_safetensors(whole, "~/net.safetensors")
        return whole.predict(x)

    assert (sk.run_ranks(1, on_rank)[0] == sk.load(home / "saved").predict(x)).all()
    assert {path.name for path in home.iterdir()} == {"run", "out.h5", "saved", "net.safetensors"}
