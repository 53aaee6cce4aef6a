"""Records of runs that others wrote: what is counted with is a number of a usual size."""

import json

import pytest

from shardkit.testing.base import InputError
from shardkit.testing.report import describe_run
from shardkit.testing.train import has_checkpoints, read_metrics

STRANGE = {
    "validation_loss": ["x", True, [1.0], {}, 10**400, -(10**400)],
    "time": ["x", None, True, [], 10**400],
    "step": [-1, 1.5, "1", None, True, 10**400],
    "loss": [10**400, 1 << 63],
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_record_of_no_number_is_refused_with_its_line_and_name(tmp_path, name):
    path = tmp_path / "metrics.jsonl"
    good = {"step": 1, "validation_loss": 2, "time": 3}
    for value in STRANGE[name]:
        path.write_text(f"{json.dumps(good)}\n{json.dumps({**good, name: value})}\n")
        with pytest.raises(InputError, match=rf"metrics\.jsonl.*line 2.*{name}"):
            read_metrics(path)
    path.write_text(f"{json.dumps(good)}\n{json.dumps({**good, 'loss': (1 << 63) - 1})}\n")
    assert "9.223e+18" in describe_run(tmp_path)


@pytest.mark.parametrize("place", [5e-324, 1 << 63, [], {}, True])
def test_a_run_whose_settings_name_no_folder_to_fall_back_to_has_its_own(tmp_path, place):
    (tmp_path / "configuration.json").write_text(json.dumps({"run": {"fallback_folder": place}}))
    assert not has_checkpoints(tmp_path)
