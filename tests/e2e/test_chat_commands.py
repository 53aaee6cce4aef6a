"""The commands of docs/chat.md: conversations, training on them by ranks, and the way back."""

import json
import os
import re
import runpy
import subprocess

import pytest
from e2e.mpi_jobs import ROOT, python_of

SMALL = "--run.steps=30 --optimizer.learning_rate=1e-2 --sample.tokens=8"
HERE = {"MODEL": "base", "RUN": "run", "held_out.h5": "chat.h5", "length=1024": "length=64"}


def commands_of_page() -> list[str]:
    """Return the commands of the table in docs/chat.md, for the small model."""
    commands = re.findall(r"^\| `shardkit (.*?)` \|", (ROOT / "docs/chat.md").read_text(), re.M)
    for meant, here in HERE.items():
        commands = [command.replace(meant, here) for command in commands]
    return commands


def test_a_model_is_tuned_on_conversations_and_handed_back_by_commands(tmp_path):
    for library in ("torch", "transformers", "tokenizers", "jinja2"):
        pytest.importorskip(library)
    python = python_of("MPICH")
    example = runpy.run_path(str(ROOT / "examples/chat.py"))
    example["write_conversations"](tmp_path / "chat.jsonl")
    example["write_base"](tmp_path / "base")

    def shardkit(text, ranks=1):
        start = [str(python.with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
        done = subprocess.run(
            [*start, str(python), "-m", "shardkit", *text.split()],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    prepare, train, evaluate, convert = commands_of_page()
    assert "in 400 documents" in shardkit(prepare, ranks=2)
    told = shardkit(f"{train} {SMALL}", ranks=2)
    assert "380 conversations, in " in told and "<|user|>Who are you?<|end|>" in told
    assert "(perplexity " in shardkit(f"{evaluate} --json figures.json")
    assert json.loads((tmp_path / "figures.json").read_text())["perplexity"] < 20
    told = shardkit(convert)
    assert "chat_template.jinja" in told and "generation_config.json" in told
