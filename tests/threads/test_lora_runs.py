"""Runs of the command with LoRA begin with a plain model, go on anywhere, and are converted."""

import warnings

import numpy
import pytest
from test_source_runs import SMALL, are_equal, run

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.checkpoint import to_adapter, to_safetensors
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, first_settings

LORA = {"model.lora_rank": 2, "model.lora_alpha": 4.0, "model.lora_layers": ["*.query", "*.mlp.up"]}
X = numpy.arange(24).reshape(2, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a text, a run `base` of all weights, and a run `tuned` of updates on top."""
    folder = tmp_path_factory.mktemp("lora")
    (folder / "text.txt").write_text("the cat sat on the mat. " * 40)
    run(folder, "base", {"data.path": [str(folder / "text.txt")]}, num_ranks=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(folder, "tuned", tuned(folder))
    return folder


def tuned(folder, **more):
    data = {"data.path": [str(folder / "text.txt")], "run.steps": 6, "optimizer.decay": "constant"}
    return {**data, "model.start": str(folder / "base"), **LORA, **more}


@pytest.mark.thorough
def test_the_bits_are_those_of_one_rank_and_a_stopped_run_goes_on_elsewhere(folder):
    whole = run(folder, "whole", tuned(folder))
    mesh = {"mesh.pipeline": 2}
    assert are_equal(whole, run(folder, "mesh", tuned(folder, **mesh), num_ranks=4))
    run(folder, "parts", tuned(folder, **{"run.steps": 3}), num_ranks=2)
    assert are_equal(whole, run(folder, "parts", {"run.steps": 6}, num_ranks=1, resume=True))
    run(folder, "tensor", tuned(folder, **{"mesh.tensor": 2}), num_ranks=2)
    theirs, ours = sk.load(folder / "tensor").predict(X), sk.load(folder / "whole").predict(X)
    numpy.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_only_the_updates_have_moved_and_they_are_merged_or_written_alone(folder):
    base, model = sk.load(folder / "base"), sk.load(folder / "tuned")
    start, now = base.state_dict(), model.state_dict()
    assert all((start[name] == now[name]).all() for name in start)
    wanted = model.predict(X)
    assert abs(base.predict(X) - wanted).max() > 1e-5
    to_safetensors(folder / "tuned", folder / "merged")
    merged = sk.load(folder / "merged").predict(X)
    numpy.testing.assert_allclose(merged, wanted, rtol=1e-4, atol=1e-6)
    to_adapter(folder / "tuned", folder / "adapter")
    assert len(sk.load_adapter(base, folder / "adapter")) == 4
    assert (base.predict(X) == wanted).all()


def test_another_run_goes_on_with_the_updates_of_one(folder):
    started = {**tuned(folder), "model.start": str(folder / "tuned")}
    run(folder, "more", started)
    with pytest.raises(ConfigurationError, match="lora_rank = 3, but the model in"):
        first_settings(configuration_of(Language), {**started, "model.lora_rank": 3})


def test_settings_of_updates_that_do_not_apply_are_refused(folder):
    plain = {**SMALL, "data.path": [str(folder / "text.txt")]}
    for given, message in [
        ({"model.lora_alpha": 3.0}, "lora_alpha = 3.0; wanted lora_rank above 0"),
        ({**LORA, "model.lora_layers": ["*.querry"]}, "did you mean"),
        ({**LORA, "model.lora_layers": ["head.output"], "model.tied": True}, "is tied"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            run(folder, "refused", {**plain, **given})
        assert not (folder / "refused" / "checkpoints").exists()
