"""Whether a bar can be shown: a terminal here, or at the launcher; and texts of durations."""

import io
import os
import pty

import pytest

from shardkit import ConfigurationError
from shardkit.testing.doctor import as_text, error, ok, warning
from shardkit.testing.train import console_of, duration_text, output_of_launcher, seconds_text
from shardkit.testing.train import terminal as terminal_module


class Stream(io.StringIO):
    """A stream that is a terminal, or is not."""

    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "SHARDKIT_PROGRESS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal_module, "output_of_launcher", lambda: None)


@pytest.mark.parametrize(
    ("is_terminal", "environment", "has_bar"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"SHARDKIT_PROGRESS": "lines"}, False),
        (False, {"SHARDKIT_PROGRESS": "bar"}, True),
        (True, {"NO_COLOR": "1", "SHARDKIT_PROGRESS": "bar"}, True),
        (False, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_a_bar_is_for_terminals_and_the_environment_decides(
    is_terminal, environment, has_bar, monkeypatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert console_of(Stream(is_terminal)).is_terminal == has_bar


def test_another_wish_is_refused_with_what_there_is(monkeypatch):
    monkeypatch.setenv("SHARDKIT_PROGRESS", "fancy")
    with pytest.raises(ConfigurationError, match="wanted auto, bar or lines"):
        console_of(Stream(True))


def test_a_line_of_no_terminal_is_written_as_it_is(monkeypatch):
    monkeypatch.setenv("SHARDKIT_PROGRESS", "lines")
    stream = Stream(False)
    text = "[bold] :smile: \t 3.5 [/x] " + "long " * 99 + "\nsecond"
    console_of(stream).print(text, markup=False)
    assert stream.getvalue() == text + "\n"


@pytest.fixture
def terminal():
    """The path of a real terminal."""
    master, slave = pty.openpty()
    yield os.ttyname(slave)
    os.close(master)
    os.close(slave)


def processes(folder, *chain):
    """Lay out /proc of (command, standard output) from this process up; the first has number 9."""
    for number, (command, target) in zip(range(9, 0, -1), chain):
        place = folder / str(number) / "fd"
        place.mkdir(parents=True)
        (place.parent / "stat").write_text(f"{number} (a (b) c) S {number - 1} 0 0")
        (place.parent / "cmdline").write_text("\0".join(command.split()) + "\0")
        (place / "1").symlink_to(target)
    return output_of_launcher(folder, 9)


PYTHON, PROXY = ("python train.py", "pipe:[1]"), ("/opt/hydra_pmi_proxy --x", "pipe:[2]")


def test_the_terminal_of_mpiexec_is_found_above_its_proxy(tmp_path, terminal):
    launcher = ("/opt/bin/mpiexec -n 4 python train.py", terminal)
    assert processes(tmp_path, PYTHON, PROXY, launcher) == terminal


@pytest.mark.parametrize("command", ["python /opt/bin/mpiexec -n 4", "prterun -n 4", "mpirun x"])
def test_launchers_have_several_names(command, tmp_path, terminal):
    assert processes(tmp_path, PYTHON, (command, terminal)) == terminal


@pytest.mark.parametrize(
    "command",
    ["mpiexec -l -n 4", "mpiexec -prepend-rank", "mpirun --tag-output", "mpirun --output tag x"],
)
def test_a_launcher_that_labels_lines_gets_lines(command, tmp_path, terminal):
    assert processes(tmp_path, PYTHON, (command, terminal)) == ""


def test_a_batch_system_is_no_launcher_that_has_a_terminal(tmp_path, terminal):
    assert processes(tmp_path, PYTHON, ("slurmstepd: [1.0]", terminal)) is None


@pytest.mark.parametrize("is_terminal", [False, True])  # Open MPI's ranks have one of their own
def test_what_the_launcher_writes_to_decides(is_terminal, terminal, monkeypatch):
    for output, has_bar in [(terminal, True), ("/home/me/log", False), ("pipe:[3]", False)]:
        monkeypatch.setattr(terminal_module, "output_of_launcher", lambda output=output: output)
        assert console_of(Stream(is_terminal)).is_terminal == has_bar


def test_a_file_is_a_file_below_a_launcher_on_a_terminal_too(tmp_path, terminal, monkeypatch):
    monkeypatch.setattr(terminal_module, "output_of_launcher", lambda: terminal)
    with open(tmp_path / "log", "w") as log:
        assert not console_of(log).is_terminal


@pytest.mark.parametrize(
    ("seconds", "duration", "fine"),
    [
        (0.0, "0s", "0s"),
        (0.00123, "1.2 ms", "1.2 ms"),
        (0.0421, "42 ms", "42 ms"),
        (0.9996, "1s", "1.00 s"),
        (1.234, "1s", "1.23 s"),
        (65.2, "1m05s", "65.20 s"),
        (3700, "1h01m", "1h01m"),
    ],
)
def test_a_duration_has_the_unit_that_fits_it(seconds, duration, fine):
    assert (duration_text(seconds), seconds_text(seconds)) == (duration, fine)


def test_levels_of_the_doctor_are_colored_on_a_terminal_alone():
    findings = [*ok("MPI", "fine"), *warning("cores", "few", "more"), *error("files", "none")]
    plain, colored = as_text(findings), as_text(findings, is_colored=True)
    assert "\x1b" not in plain and colored.count("\x1b[0m") == 3
    assert "\x1b[1;31merror" in colored and "\x1b[33mwarning" in colored
    for code in ("\x1b[0m", "\x1b[32m", "\x1b[33m", "\x1b[1;31m"):
        colored = colored.replace(code, "")
    assert colored == plain
