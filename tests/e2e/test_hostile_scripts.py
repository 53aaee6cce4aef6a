"""Text that becomes a script: whatever a name, a path, a value or a command holds, the job runs the
very words that were given and nothing else, or it is refused.

The scripts are executed, with stand-ins for the batch system and the launcher.
"""

import os
import shlex
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardkit import ConfigurationError
from shardkit.testing.cli import main
from shardkit.testing.files import is_plain, shown
from shardkit.testing.slurm import JobPlan, render
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of

RunConfiguration = configuration_of(Language)
KINDS = [
    *(("slurm", name) for name in ("single_node", "multi_node", "gpu_node", "array", "chain")),
    *(("pbs", "multi_node"), ("lsf", "multi_node")),
]
DEEDS = ["$(touch hit)", "`touch hit`", '"; touch hit; "', "'; touch hit; '", "${X:=$(touch hit)}"]
DEEDS += ["\n#SBATCH --wrap='touch hit'\n", "\ntouch hit\n", "\r\ntouch hit", "a && touch hit"]
DEEDS += ["| touch hit", "> hit", "<(touch hit)", "\\", '\\"', "@{jobs}", "%x", "!!", "*", "~", "#"]
DEEDS += [
    "$HOME",
    "$'\\ntouch hit'",
    "-rf",
    "--",
    ":",
    "",
    " ",
    "a b",
    "\t",
    "\x1b]0;x\x07",
    "\x00",
]
DEEDS += ["é", "日本", "\u202e", "\udc80", "x" * 300, "../../x", "a/b"]
HOSTILE = st.one_of(
    st.sampled_from(DEEDS),
    st.text("ab$`\"'\\;&|<>(){}[]*?~#!%@:=- \n\r\t\x00\x1b/.é", max_size=12),
    st.tuples(st.sampled_from(DEEDS), st.sampled_from(DEEDS)).map("".join),
)
FAST = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
STOPPED = "#!/bin/sh\nexit 1\n"  # of squeue, sinfo, scontrol, ...


@pytest.fixture
def site(tmp_path):
    """A folder with the stand-ins, and an env.sh whose launcher notes the words of the ranks."""
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "sinfo", "scontrol", "sbatch", "qsub", "hit", "touch"):
        text = f"#!/bin/sh\necho {name} >> '{tmp_path}/asked'\nexit 1\n"
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "note.sh").write_text(
        'while [ "$1" != rank ]; do shift; done; shift; printf "%s\\0" "$@" > words\n'
    )
    (tmp_path / "env.sh").write_text(
        f"PATH='{tmp_path}/bin':$PATH\nPYTHON=(python)\nSRUN=(bash '{tmp_path}/note.sh')\n"
        f"MPIEXEC=(bash '{tmp_path}/note.sh')\nLAUNCH_SECONDS=0\n"
    )
    return tmp_path


def executed(site, script) -> list[str]:
    """Run a rendered script in an empty folder; return the words that the launcher got."""
    work = site / "work"
    work.mkdir(exist_ok=True)
    for path in work.iterdir():
        path.unlink()
    subprocess.run(["bash", "-n"], input=script.encode(), check=True, timeout=500)
    asks = [line for line in script.split("\n") if line.startswith(("#SBATCH", "#PBS", "#BSUB"))]
    assert not [line for line in asks if "wrap" in line or set(line) & set("$`;|&<>'\\\r")]
    here = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "PBS_JOBID": "7", "LSB_JOBID": "7"}
    subprocess.run(
        ["bash"],
        input=script.encode(),
        cwd=work,
        env={"PATH": os.environ["PATH"], **here, "PBS_O_WORKDIR": str(work), "HOME": "/nowhere"},
        capture_output=True,
        timeout=500,
    )
    assert sorted(path.name for path in work.iterdir()) == ["words"]
    asked = site / "asked"
    assert not asked.exists() or "touch" not in asked.read_text()
    return (work / "words").read_bytes().decode("utf-8").split("\0")[:-1]


def rendered(site, kind, values=(), output="job.sh", **changes):
    scheduler, template = kind
    plan = {
        "launcher": "srun" if scheduler == "slurm" else "mpiexec",
        "sweep": (("run.seed", ("0", "1")),) if template == "array" else (),
        "env_file": str(site / "env.sh"),
        **changes,
    }
    configuration = RunConfiguration().replace(dict(values))
    arguments = [f"--{key}={value}" for key, value in dict(values).items()]
    return render(JobPlan(template, 1, 2, scheduler, **plan), configuration, arguments, output)


def or_refused(make):
    """What is made, or None where it is refused in words that a terminal may show."""
    try:
        return make()
    except ConfigurationError as error:
        assert str(error)
        return None


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@FAST
@given(text=HOSTILE)
def test_settings_come_to_the_ranks_as_they_were_given(site, kind, text):
    values = {"data.path": text, "run.folder": f"runs/{text}"}
    script = or_refused(lambda: rendered(site, kind, values))
    if not is_plain(text):
        assert script is None
    if script is None:
        return
    folder = f"--run.folder=runs/{text}"
    words = executed(site, script)
    assert words[:6] == ["python", "-P", "-m", "shardkit", "train", "--resume-if-any"]
    assert f"--data.path={text}" in words
    assert words[-1] == (f"{folder}/0" if kind[1] == "array" else folder) or folder in words


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] != "array"], ids="-".join)
@FAST
@given(text=st.lists(HOSTILE, min_size=1, max_size=3))
def test_a_command_of_ones_own_comes_to_the_ranks_word_by_word(site, kind, text):
    command = ("python", "script.py", *text)
    script = or_refused(lambda: rendered(site, kind, command=command))
    if script is not None:
        assert executed(site, script) == list(command)
    else:
        assert not all(map(is_plain, text)) or ":" in text or kind[1] == "gpu_node"


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@FAST
@given(text=HOSTILE)
def test_a_name_is_a_name_or_refused(site, kind, text):
    script = or_refused(lambda: rendered(site, kind, name=text))
    if script is not None:
        assert not set(text) & set("\n\r \t\"'`$/%\\;|&<>")
        executed(site, script)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
@FAST
@given(text=HOSTILE)
def test_paths_of_the_job_itself_are_quoted_or_refused(site, kind, text):
    def make():
        return rendered(site, kind, output=f"job{text.replace('/', '')}.sh")

    script = or_refused(make)
    if script is not None:
        executed(site, script)


@FAST
@given(text=HOSTILE)
def test_values_of_a_sweep_come_to_their_run_or_are_refused(site, text):
    sweep = (("data.path", (text, "b")),)
    script = or_refused(lambda: rendered(site, ("slurm", "array"), sweep=sweep))
    if script is not None:
        assert f"--data.path={text}" in executed(site, script)


@pytest.mark.parametrize(
    "changes",
    [
        {"launcher": "srun; touch hit"},
        {"launcher": '"$(touch hit)"'},
        {"time": "01:00:00\n#SBATCH --wrap=x"},
        {"at_once": "4\n#SBATCH --wrap=x"},
        {"restarts": "$(touch hit)"},
        {"gpus_per_node": "1 --wrap=x"},
        {"notice_seconds": 1.5},
    ],
    ids=str,
)
def test_what_is_no_number_and_no_word_of_the_list_is_refused(site, changes):
    with pytest.raises(ConfigurationError, match="wanted|--time"):
        rendered(site, ("slurm", "single_node"), **changes)
    with pytest.raises(ConfigurationError, match="wanted"):
        rendered(site, ("../..", "single_node"), launcher="mpiexec")
    with pytest.raises(ConfigurationError, match="wanted"):
        rendered(site, ("slurm", "../pbs/multi_node"))


def test_the_command_line_refuses_a_line_end_in_a_name(capsys):
    name = "x\n#SBATCH --wrap=evil"
    words = ["render", "--template=single_node", "--ranks-per-node=1", "--batch.sequences=8"]
    assert main([*words, "--name", name]) == 2
    said = capsys.readouterr()
    assert "--name" in said.err and said.out == "" and "\n#SBATCH" not in said.err


def test_the_example_of_a_plan_is_words_of_a_shell(tmp_path):
    """`shardkit plan` prints a command, which people paste into a shell."""
    path = tmp_path / "a $(touch hit) b.toml"
    path.write_text("[model]\nwidth = 256\nlayers = 4\nheads = 4\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shardkit", "plan", path, "cpu-node", "--devices=4"],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "run it: " in line]
    assert all(str(path) in shlex.split(line.split("run it: ")[1]) for line in lines)


# ---- a terminal ----------------------------------------------------------------------------------


@given(st.text())
def test_nothing_that_is_shown_commands_a_terminal(text):
    told = shown(text)
    assert not any(ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160 for c in told)
    told.encode("utf-8")
    assert shown(told) == told


def test_plain_text_of_any_language_is_shown_as_it_is():
    for text in ("a\nb\tc", "été", "日本語", "می‌خواهم", "µ²"):
        assert shown(text) == text
