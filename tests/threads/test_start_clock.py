"""Where the time of a start went, as a run says it."""

import re

import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, train_run


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_run_says_once_where_the_time_of_its_start_went(num_ranks, tmp_path, capsys):
    (tmp_path / "a.txt").write_text("a line of text\n" * 60)
    paths = {"data.path": [str(tmp_path / "a.txt")], "run.folder": str(tmp_path / "run")}
    given = {**TINY_RUN, **paths, "batch.sequences": 6, "run.steps": 3}
    settings = configuration_of(Language)().replace(given)
    sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend))
    ((total, since, parts),) = re.findall(
        r"^first step ([\d.]+) s after (.*): (.*)$", capsys.readouterr().out, re.MULTILINE
    )
    seconds = {part: float(number) for part, number in map(str.split, parts.split(", "))}
    assert since == "the call" and list(seconds) == ["data", "kernels", "weights", "step"]
    assert sum(seconds.values()) == pytest.approx(float(total), abs=0.03)
