"""Text on disk, and batches that are a pure function of (seed, step)."""
import json

import numpy
import pytest

from shardkit.errors import CorpusError
from shardkit.train.data import Windows, build_corpus, find_files, read_corpus, split_corpus


def text_file(folder, name="text.txt", size=5000):
    path = folder / name
    path.write_bytes(bytes(numpy.random.default_rng(0).integers(32, 127, size, dtype="uint8")))
    return path


def test_the_default_corpus_is_the_standard_library():
    names = {path.name for path in find_files([])}
    assert "argparse.py" in names and "json" not in names
    assert not any("site-packages" in path.parts or "test" in path.parts[-2:-1] for path in find_files([]))


def test_a_folder_is_read_in_sorted_order_without_hidden_and_binary_files(tmp_path):
    for name, content in (("b.txt", b"two"), ("a.txt", b"one"), (".hidden", b"no"), ("c.bin", b"\0\1")):
        (tmp_path / name).write_bytes(content)
    assert read_corpus([str(tmp_path)], 100) == b"one\ntwo"
    assert read_corpus([str(tmp_path)], 2) == b"on"


def test_training_and_validation_text_make_the_whole_and_do_not_overlap():
    text = bytes(range(250)) * 20
    training, validation = split_corpus(text, 5.0)
    assert sorted(training + validation) == sorted(text)
    assert 0.04 < len(validation) / len(text) < 0.06


@pytest.mark.parametrize("problem", ["missing", "empty", "unreadable"])
def test_text_that_cannot_be_used_is_one_sentence(tmp_path, problem, monkeypatch):
    path = tmp_path / "text.txt"
    if problem != "missing":
        path.write_bytes(b"")
    if problem == "unreadable":
        def refuse(self):
            raise PermissionError(13, "Permission denied", str(self))
        monkeypatch.setattr(type(path), "read_bytes", refuse)
    with pytest.raises(CorpusError) as error:
        build_corpus(tmp_path / "data", [str(path)], 5.0, 1000)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_sequence_longer_than_the_corpus_is_refused(tmp_path):
    build_corpus(tmp_path / "data", [str(text_file(tmp_path, size=300))], 50.0, 1000)
    with pytest.raises(CorpusError, match="sequence_length"):
        Windows.open(tmp_path / "data" / "train.bin", 200, seed=0)


def test_the_corpus_is_built_once_and_described(tmp_path):
    path = text_file(tmp_path)
    build_corpus(tmp_path / "data", [str(path)], 5.0, 10**6)
    before = (tmp_path / "data" / "train.bin").stat().st_mtime_ns
    build_corpus(tmp_path / "data", [str(path)], 5.0, 10**6)
    assert (tmp_path / "data" / "train.bin").stat().st_mtime_ns == before
    assert json.loads((tmp_path / "data" / "corpus.json").read_text())["bytes"] == 5000


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_parts_of_all_ranks_are_the_global_batch(tmp_path, num_ranks):
    build_corpus(tmp_path / "data", [str(text_file(tmp_path))], 5.0, 10**6)
    windows = Windows.open(tmp_path / "data" / "train.bin", 32, seed=5)
    whole_x, whole_y = windows.batch(step=7, first=0, count=12)
    part = 12 // num_ranks
    parts = [windows.batch(7, rank * part, part) for rank in range(num_ranks)]
    numpy.testing.assert_array_equal(numpy.concatenate([x for x, _ in parts]), whole_x)
    numpy.testing.assert_array_equal(whole_x[:, 1:], whole_y[:, :-1])
    assert not numpy.array_equal(windows.batch(8, 0, 12)[0], whole_x)
