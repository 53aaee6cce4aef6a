"""Text on disk, and batches that are a pure function of (seed, step)."""

import json

import numpy
import pytest

from shardkit.data.stream import Stream
from shardkit.errors import CorpusError
from shardkit.task.corpus import (
    Windows,
    build_corpus,
    corpus_fingerprint,
    find_files,
    read_texts,
    split_corpus,
)


def text_file(folder, name="text.txt", size=5000):
    path = folder / name
    path.write_bytes(bytes(numpy.random.default_rng(0).integers(32, 127, size, dtype="uint8")))
    return path


def test_the_default_corpus_is_the_standard_library():
    names = {path.name for path in find_files([])}
    assert "argparse.py" in names and "json" not in names
    assert not any(
        "site-packages" in path.parts or "test" in path.parts[-2:-1] for path in find_files([])
    )


def test_a_folder_is_read_in_sorted_order_without_hidden_and_binary_files(tmp_path):
    for name, content in (
        ("b.txt", b"two"),
        ("a.txt", b"one"),
        (".hidden", b"no"),
        ("c.bin", b"\0\1"),
    ):
        (tmp_path / name).write_bytes(content)
    assert read_texts([str(tmp_path)], 100) == [b"one", b"two"]
    assert read_texts([str(tmp_path)], 2) == [b"on"]


SIZES = {
    "one text": [5000],
    "two texts": [3000, 2000],
    "many texts": [100 + 37 * i % 90 for i in range(200)],
    "a long text among short ones": [100] * 30 + [50_000] + [100] * 30,
    "twenty of one size": [100] * 20,
    "texts that grow": list(range(1, 120)),
}


@pytest.mark.parametrize("percent", [1.0, 5.0, 50.0])
@pytest.mark.parametrize("case", SIZES)
def test_training_and_validation_text_make_the_whole_and_none_is_empty(case, percent):
    texts = [numpy.random.default_rng(i).bytes(size) for i, size in enumerate(SIZES[case])]
    training, validation = split_corpus(texts, percent)
    assert training and validation
    whole = {text for text in training + validation if text in texts}
    cut = {text for text in texts if text not in whole}
    assert all(any(text == a + b for a in training for b in validation) for text in cut), (
        "held out is not an end"
    )
    assert sum(map(len, training + validation)) == sum(map(len, texts))
    held_out = sum(map(len, validation)) / sum(map(len, texts))
    assert percent / 200 < held_out <= percent / 100 + len(texts) / sum(map(len, texts))


def test_what_is_held_out_of_many_texts_is_whole_texts_from_everywhere():
    texts = [b"%d" % i * (50 + 7 * i % 40) for i in range(400)]
    _, validation = split_corpus(texts, 5.0)
    places = [texts.index(text) for text in validation]
    assert all(
        any(start <= place < start + 100 for place in places) for start in (0, 100, 200, 300)
    )


def test_no_text_stands_in_both_parts_though_it_stands_in_two_files(tmp_path):
    for i in range(60):
        (tmp_path / f"{i}.txt").write_bytes(
            numpy.random.default_rng(i % 20).bytes(300).replace(b"\0", b"x")
        )
    texts = read_texts([str(tmp_path)], 10**6)
    training, validation = split_corpus(texts, 10.0)
    assert len(texts) == 20 and not set(training) & set(validation)


NO_TEXT = {
    "tokens.bin": (
        numpy.arange(300, dtype="uint16").tobytes(),
        "it holds NUL bytes, like .* nanoGPT",
    ),
    "data.h5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "it is an HDF5 file"),
    "late.txt": (b"a" * 5000 + b"\0", "it holds NUL bytes"),
    "wide.txt": ("text".encode("utf-16"), "it is UTF-16"),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_a_file_that_is_no_text_is_refused_by_name_and_kind(tmp_path, name):
    content, words = NO_TEXT[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=f"{name} is no text: {words}"):
        build_corpus(tmp_path / "data", [str(tmp_path / name)], 5.0, 10**6)
    assert not (tmp_path / "data").exists()


def test_a_folder_without_text_says_how_many_files_were_passed_over(tmp_path):
    for name in ("a.bin", "b.h5", ".hidden"):
        (tmp_path / name).write_bytes(b"\0\1\2")
    with pytest.raises(CorpusError, match="3 files were passed over"):
        read_texts([str(tmp_path)], 100)


@pytest.mark.parametrize("problem", ["missing", "empty", "unreadable"])
def test_text_that_cannot_be_used_is_one_sentence(tmp_path, problem, monkeypatch):
    path = tmp_path / "text.txt"
    if problem != "missing":
        path.write_bytes(b"")
    if problem == "unreadable":

        def refuse(path, mode):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(CorpusError) as error:
        build_corpus(tmp_path / "data", [str(path)], 5.0, 1000)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()


def test_a_sequence_longer_than_the_corpus_is_refused(tmp_path):
    build_corpus(tmp_path / "data", [str(text_file(tmp_path, size=300))], 50.0, 1000)
    with pytest.raises(CorpusError, match="sequence_length"):
        Windows.open(tmp_path / "data" / "train.bin", 200)


def test_a_corpus_is_described_and_built_again_from_what_is_asked_for(tmp_path):
    first, second = text_file(tmp_path), text_file(tmp_path, "other.txt", 3000)
    build_corpus(tmp_path / "data", [str(first)], 5.0, 10**6)
    assert json.loads((tmp_path / "data" / "corpus.json").read_text())["bytes"] == 5000
    fingerprint = corpus_fingerprint(tmp_path / "data")
    for paths, percent, maximum in (
        ([second], 5.0, 10**6),
        ([first], 10.0, 10**6),
        ([first], 5.0, 4000),
    ):
        build_corpus(tmp_path / "data", list(map(str, paths)), percent, maximum)
        assert corpus_fingerprint(tmp_path / "data") != fingerprint, (paths, percent, maximum)
    build_corpus(tmp_path / "data", [str(first)], 5.0, 10**6)
    assert corpus_fingerprint(tmp_path / "data") == fingerprint
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_parts_of_all_ranks_are_the_global_batch(tmp_path, num_ranks):
    build_corpus(tmp_path / "data", [str(text_file(tmp_path))], 5.0, 10**6)
    windows = Windows.open(tmp_path / "data" / "train.bin", 32)

    def batch(first, count, step=7):
        with Stream(windows, 5, "training", global_batch=12, first=first, count=count) as stream:
            return stream.batch(step)

    whole_x, whole_y = batch(0, 12)
    part = 12 // num_ranks
    parts = [batch(rank * part, part) for rank in range(num_ranks)]
    numpy.testing.assert_array_equal(numpy.concatenate([x for x, _ in parts]), whole_x)
    numpy.testing.assert_array_equal(whole_x[:, 1:], whole_y[:, :-1])
    assert not numpy.array_equal(batch(0, 12, step=8)[0], whole_x)
