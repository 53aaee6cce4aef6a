"""The tokenizer of a token file: in the run, in its checkpoints, in the text that comes out."""

import pytest
from builders import TINY_RUN

from shardkit import ConfigurationError, run_ranks
from shardkit.testing.checkpoint import find_checkpoint
from shardkit.testing.cli import main
from shardkit.testing.data import Preparation, prepare_tokens
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of, first_settings, train_run

pytest.importorskip("tokenizers")
SMALL = {**TINY_RUN, "sample.tokens": 5, "sample.prompt": "the cat"}


def tokens_of(folder, text):
    """The path of a token file, with a vocabulary of 270 that was trained on the text."""
    folder.mkdir()
    (folder / "a.txt").write_text(text * 60)
    preparation = Preparation((str(folder / "a.txt"),), folder / "tokens.h5", train_vocabulary=270)
    run_ranks(1, lambda backend: prepare_tokens(backend, preparation))
    return str(folder / "tokens.h5")


def run(num_ranks, folder, *, resume=False, **changes):
    given = SMALL | {"run.folder": str(folder)} | changes
    settings = first_settings(configuration_of(Language), given)
    return run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))[0]


@pytest.mark.thorough
def test_the_tokenizer_travels_and_the_model_speaks_text_again(tmp_path, capsys):
    path = tokens_of(tmp_path / "corpus", "the cat sat on the mat, and the dog sat too.\n")
    wanted = (tmp_path / "corpus/tokenizer.json").read_bytes()
    result = run(2, tmp_path / "run", **{"data.path": [path]})
    assert "sample of generated text:\nthe cat" in result.shown
    run(1, tmp_path / "run", resume=True, **{"data.path": [path], "run.steps": 3})
    checkpoint, _ = find_checkpoint(tmp_path / "run")
    assert checkpoint.manifest["step"] == 3 and checkpoint.companions()["tokenizer.json"] == wanted
    assert (tmp_path / "run/tokenizer.json").read_bytes() == wanted
    capsys.readouterr()
    arguments = ["--prompt=the dog", "--tokens=4", "--temperature=0"]
    assert main(["generate", str(tmp_path / "run"), *arguments]) == 0
    assert capsys.readouterr().out.startswith("the dog")
    other = tokens_of(tmp_path / "other", "a bird sings in a tree of another wood, high up.\n")
    start = {"model.start": str(tmp_path / "run"), "data.path": [other]}
    with pytest.raises(ConfigurationError, match="another tokenizer than that of"):
        run(2, tmp_path / "next", **start)
    assert not (tmp_path / "next/checkpoints").exists()
    assert run(2, tmp_path / "third", **start | {"data.path": [path]}).steps == 2
