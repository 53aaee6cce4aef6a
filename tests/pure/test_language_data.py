"""Language data is read where it is, in five formats, and split by documents without a leak."""

import os
import pickle
import time
from pathlib import Path

import numpy
import pytest
from token_sources import FORMATS, WITH_DOCUMENTS, documents, write_documents, write_megatron

from shardkit import ConfigurationError
from shardkit.testing.base import CorpusError
from shardkit.testing.data import (
    IGNORED,
    ByteTokenizer,
    Corpus,
    LanguageData,
    PackedTokens,
    Segment,
    TextData,
    TokenWindows,
    content_of,
)

PARTS = ("training", "validation")


def prepared(folder, *, resume=False, **settings):
    """What rank 0 prepares and another rank opens."""
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    settings = TextData(**settings)
    LanguageData.prepare(folder / "data", settings, resume=resume).store(folder / "data")
    return LanguageData.open(folder / "data", settings)


def tokens_of(samples):
    """All tokens of windows, in their order, with the last target."""
    x, y = samples.read(numpy.arange(len(samples)))
    return numpy.append(x.reshape(-1), y[-1, -1])


@pytest.mark.parametrize("name", FORMATS)
def test_the_tokens_of_each_format_are_those_that_were_written(tmp_path, name):
    docs = documents()
    path = write_documents(tmp_path / "files", name, docs)
    data = prepared(tmp_path, path=[str(path)], validation_percent=25.0)
    assert data.vocabulary_size == (None if name in ("megatron", "npy", "npz") else 256)
    written = numpy.concatenate(docs)
    parts = {part: tokens_of(data.samples(part, 1, 256)) for part in PARTS}
    assert sum(map(len, parts.values())) == len(written)
    if name not in WITH_DOCUMENTS:
        assert numpy.array_equal(numpy.concatenate(list(parts.values())), written)
        return
    held = training = 0
    for doc in docs:  # each document is whole in one part, in its order
        found = [part[at : at + len(doc)] for part, at in zip(parts.values(), (training, held))]
        is_trained, is_held = (numpy.array_equal(each, doc) for each in found)
        assert is_trained != is_held
        training += len(doc) * is_trained
        held += len(doc) * is_held
    assert 0.1 < held / len(written) <= 0.25


@pytest.mark.parametrize("name", WITH_DOCUMENTS)
@pytest.mark.parametrize("length", [7, 64])
def test_the_first_token_of_a_document_is_no_target_if_that_is_wanted(tmp_path, name, length):
    docs = documents(12)
    path = write_documents(tmp_path / "files", name, docs)
    other = write_documents(tmp_path / "other", name, documents(3, seed=1))
    both = [
        prepared(
            tmp_path / str(masks),
            path=[str(path)],
            validation_path=[str(other)],
            mask_documents=masks,
        ).samples("training", length, 256)
        for masks in (False, True)
    ]
    (x, y), (same_x, masked) = (each.read(numpy.arange(len(each))) for each in both)
    begins = numpy.cumsum([len(doc) for doc in docs])
    positions = numpy.arange(1, y.size + 1).reshape(y.shape)  # of the targets
    assert numpy.array_equal(masked, numpy.where(numpy.isin(positions, begins), IGNORED, y))
    assert numpy.array_equal(x, same_x) and (masked == IGNORED).sum() > 5
    assert both[0].fingerprint() != both[1].fingerprint()


def test_windows_tile_the_tokens_and_are_shifted_by_one(tmp_path):
    path = tmp_path / "tokens.npy"
    numpy.save(path, numpy.arange(10_000, dtype="int32"))
    data = prepared(tmp_path, path=[str(path)])
    windows = data.samples("training", 16, 10_000)
    assert len(windows) == (9_500 - 1) // 16 and data.num_tokens("validation") == 500
    x, y = windows.read(numpy.array([3, 0, 3]))
    assert x.dtype == y.dtype == numpy.int64 and x.flags.writeable
    assert numpy.array_equal(x[0], numpy.arange(48, 64)) and numpy.array_equal(x + 1, y)
    assert numpy.array_equal(x[0], x[2]) and x[1, 0] == 0


def test_the_default_text_is_the_standard_library(tmp_path):
    data = prepared(tmp_path)
    assert data.num_tokens("training") > 10**6 and data.vocabulary_size == 256
    names = {Path(s.path).name for s in data.samples("training", 8, 256).tokens.segments}
    assert "argparse.py" in names and not any("site-packages" in name for name in names)


def test_no_text_stands_in_both_parts_though_it_stands_in_two_files(tmp_path):
    for i, doc in enumerate(documents(20) * 3):
        (tmp_path / f"{i}.txt").write_bytes(doc.astype("uint8").tobytes())
    data = prepared(tmp_path, path=[str(tmp_path)], validation_percent=10.0)
    assert sum(map(data.num_tokens, PARTS)) == sum(map(len, documents(20)))


def test_only_the_index_is_in_the_folder_and_text_is_cut_to_the_most_bytes(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 10**6)
    data = prepared(tmp_path, path=[str(tmp_path / "a.txt")], maximum_bytes=1000)
    assert data.num_tokens("training") == 950 and data.num_tokens("validation") == 50
    assert sum(file.stat().st_size for file in (tmp_path / "data").iterdir()) < 1000


def test_other_files_are_read_whole_if_their_tokens_are_those_of_the_run(tmp_path):
    docs = documents()
    text = write_documents(tmp_path / "text", "text", docs)
    data = prepared(tmp_path, path=[str(text)])
    for name in FORMATS:
        path = write_documents(tmp_path / name, name, docs)
        found = data.samples_of(str(path), 1, 256)
        assert numpy.array_equal(tokens_of(found), numpy.concatenate(docs))
    path = tmp_path / "tokens" / "tokens.h5"
    content = path.read_bytes()
    path.write_bytes(content.replace(ByteTokenizer().hash.encode(), b"0" * 64))
    with pytest.raises(CorpusError, match="another tokenizer"):
        data.samples_of(str(path), 1, 256)


# ---- runs that go on -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_run_goes_on_with_the_files_that_it_was_trained_on_and_no_others(tmp_path, name):
    path = write_documents(tmp_path / "files", name, documents())
    first = prepared(tmp_path, path=[str(path)]).samples("training", 8, 256)
    again = prepared(tmp_path, path=[str(path)], resume=True).samples("training", 8, 256)
    assert first.fingerprint() == again.fingerprint()
    moved = write_documents(tmp_path / "moved", name, documents())
    there = prepared(tmp_path / "there", path=[str(moved)]).samples("training", 8, 256)
    assert there.fingerprint() == first.fingerprint()  # no path is in it
    write_documents(tmp_path / "files", name, documents(seed=3))
    with pytest.raises(CorpusError, match="is not what this run was trained on"):
        prepared(tmp_path, path=[str(path)], resume=True)


def test_a_file_that_is_gone_is_named_when_a_run_goes_on(tmp_path):
    path = write_documents(tmp_path / "files", "nanogpt", documents())
    prepared(tmp_path, path=[str(path)])
    path.unlink()
    with pytest.raises(CorpusError, match="train.bin, which this run was trained on, cannot be"):
        prepared(tmp_path, path=[str(path)], resume=True)


def test_a_folder_with_a_copy_of_the_text_is_refused_with_what_is_possible(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corpus.json").write_text("{}")
    with pytest.raises(CorpusError, match="a copy of the text.*--model.start="):
        prepared(tmp_path, resume=True)


def test_a_file_that_becomes_shorter_while_it_is_read_is_one_sentence(tmp_path):
    path = tmp_path / "tokens.npy"
    numpy.save(path, numpy.zeros(10**6, "uint16"))
    samples = prepared(tmp_path, path=[str(path)]).samples("training", 8, 9)
    os.truncate(path, 1000)
    with pytest.raises(CorpusError, match="became shorter"):
        samples.read(numpy.array([len(samples) - 1]))


# ---- what is refused -----------------------------------------------------------------------------

NO_TEXT = {
    "tokens.bin": (
        numpy.arange(300, dtype="uint16").tobytes(),
        "it holds NUL bytes, like .* nanoGPT.*token_dtype",
    ),
    "data.h5": (b"\x89HDF\r\n\x1a\n" + bytes(100), "it is an HDF5 file"),
    "late.txt": (b"a" * 5000 + b"\0", "it holds NUL bytes"),
    "wide.txt": ("text".encode("utf-16"), "it is UTF-16"),
    "wide without zeros.txt": ("\u6587\u672c".encode("utf-16"), "it is UTF-16"),
    "small.bz2": (b"BZh91AY&SY", "it is compressed; .*shardkit prepare"),
    "small.zst": (b"\x28\xb5\x2f\xfd text", "it is compressed"),
    "book.pdf": (b"%PDF-1.4\n%text", "it is a PDF; pdftotext"),
}


@pytest.mark.parametrize("name", NO_TEXT)
def test_a_file_that_is_no_text_is_refused_by_name_and_kind(tmp_path, name):
    content, words = NO_TEXT[name]
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, f"{name} is no text: {words}", path=[str(tmp_path / name)])


def refused(folder, words, **settings):
    with pytest.raises(CorpusError, match=words) as error:
        prepared(folder, **settings)
    assert "\n" not in str(error.value)
    assert not (folder / "data").exists()


def test_a_folder_without_text_says_how_many_files_were_passed_over(tmp_path):
    for name in ("a.bin", "b.h5", ".hidden"):
        (tmp_path / name).write_bytes(b"\0\1\2")
    refused(tmp_path, "3 files were passed over", path=[str(tmp_path)])


@pytest.mark.parametrize("problem", ["missing", "empty", "unreadable"])
def test_text_that_cannot_be_used_is_one_sentence(tmp_path, problem, monkeypatch):
    path = tmp_path / "text.txt"
    if problem != "missing":
        path.write_bytes(b"")
    if problem == "unreadable":

        def refuse(path, mode):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("builtins.open", refuse)
    refused(tmp_path, "does not exist|no text in|cannot read", path=[str(path)])


def test_settings_that_do_not_fit_the_files_are_refused(tmp_path):
    text = str(write_documents(tmp_path / "text", "text", documents()))
    tokens = str(write_documents(tmp_path / "tokens", "tokens", documents()))
    for words, settings in (
        ("token_dtype is for the format nanogpt", {"path": [text], "token_dtype": "uint16"}),
        ("maximum_bytes is for the format text", {"path": [tokens], "maximum_bytes": 9}),
        ("weights has 1 numbers for 2 paths", {"path": [text, tokens], "weights": [1.0]}),
        ("mixes text and tokens", {"path": [text, tokens]}),
        ("is a folder; data.format npy", {"path": [text], "format": "npy"}),
        ("is also trained on", {"path": [tokens], "validation_path": [tokens]}),
        (
            "validation_percent holds out a part",
            {"path": [tokens], "validation_path": [text], "validation_percent": 9.0},
        ),
    ):
        refused(tmp_path, words, **settings)


def test_the_dtype_of_nanogpt_files_is_never_guessed(tmp_path):
    path = write_documents(tmp_path / "files", "nanogpt", documents())
    path.with_name("meta.pkl").unlink()
    refused(tmp_path, "uint16 or uint32.*token_dtype", path=[str(path)], format="nanogpt")
    wide = prepared(tmp_path, path=[str(path)], token_dtype="uint32")
    assert sum(map(wide.num_tokens, PARTS)) == sum(map(len, documents())) // 2
    path.write_bytes(bytes(7))
    refused(tmp_path / "odd", "7 bytes.* multiple of 2", path=[str(path)], token_dtype="uint16")


def test_a_meta_file_that_would_run_code_is_refused(tmp_path):
    path = write_documents(tmp_path / "files", "nanogpt", documents())
    path.with_name("meta.pkl").write_bytes(pickle.dumps(os.system))
    refused(tmp_path, "meta.pkl is not read .*it names", path=[str(path)])


def test_damaged_indexes_of_megatron_are_refused(tmp_path):
    docs = documents()
    path = write_megatron(tmp_path / "corpus", docs, numpy.dtype("<u2"), 8)
    index = path.with_suffix(".idx").read_bytes()
    for words, content in (
        ("no index of Megatron-LM", b"x" + index[1:]),
        ("at least", index[:60]),
        ("dtype code 7", index[:17] + b"\7" + index[18:]),
    ):
        path.with_suffix(".idx").write_bytes(content)
        refused(tmp_path, words, path=[str(path)])
    path.with_suffix(".idx").write_bytes(index)
    path.write_bytes(path.read_bytes()[:-2])
    refused(tmp_path, "do not belong together", path=[str(path)])


@pytest.mark.parametrize("array", [numpy.zeros((2, 3), int), numpy.zeros(5), numpy.zeros(0, int)])
def test_arrays_that_are_no_tokens_are_refused(tmp_path, array):
    numpy.save(tmp_path / "a.npy", array)
    refused(tmp_path, "wanted the tokens one behind", path=[str(tmp_path / "a.npy")])


@pytest.mark.parametrize("value", [-1, 300])
def test_tokens_beyond_the_vocabulary_are_refused_before_training_and_when_read(tmp_path, value):
    tokens = numpy.zeros(5000, "int32")
    tokens[777] = value
    numpy.save(tmp_path / "a.npy", tokens)
    data = prepared(tmp_path, path=[str(tmp_path / "a.npy")])
    words = f"a.npy: token 777 is {value}, but the vocabulary has 256 tokens"
    with pytest.raises(CorpusError, match=words):
        data.check_tokens(256)
    with pytest.raises(CorpusError, match=words):
        tokens_of(data.samples("training", 10, 256))


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path):
    data = prepared(tmp_path, path=[str(write_documents(tmp_path, "text", documents()))])
    data.check_tokens(256)
    with pytest.raises(CorpusError, match="a vocabulary of 256 tokens, but the model one of 100"):
        data.check_tokens(100)


def test_a_part_without_a_window_is_refused_with_its_size(tmp_path):
    data = prepared(tmp_path, path=[str(write_documents(tmp_path, "text", documents()))])
    with pytest.raises(CorpusError, match=r"validation has \d+ tokens.*sequence_length"):
        data.samples("validation", 200, 256)


# ---- large files ---------------------------------------------------------------------------------


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_sparse_file_of_2_gb_starts_as_fast_as_a_small_one_and_stays_on_disk(tmp_path):
    docs = documents()
    small = write_documents(tmp_path / "small", "nanogpt", docs)
    large = tmp_path / "large" / "train.bin"
    large.parent.mkdir()
    large.write_bytes(b"")
    os.truncate(large, 2 << 30)
    seconds = []
    before = resident_bytes()
    for path in (small, large):
        began = time.process_time()  # of this process: a busy machine adds none
        data = prepared(path.parent, path=[str(path)], token_dtype="uint16")
        data.check_tokens(256)
        samples = data.samples("training", 64, 256)
        x, _ = samples.read(numpy.arange(4096) * len(samples) // 4096)
        seconds.append(time.process_time() - began)
    assert len(samples) > 15 * 10**6 and not x.any()
    assert seconds[1] - seconds[0] < 1.0
    assert resident_bytes() - before < 100 << 20  # pages of a map would be there


def test_documents_of_a_large_file_are_split_without_a_list_of_them(tmp_path):
    path = tmp_path / "zeros"
    path.write_bytes(b"")
    os.truncate(path, 10**7)
    offsets = numpy.arange(0, 10**7 + 1, 10)
    segment = Segment(str(path), "uint8", 0, 10**7, content_of(path), offsets)
    split = Corpus("text", (segment,), 1.0, 256, None).split(5.0)
    assert (
        len(split["validation"].parts) < 5000 and not (split["validation"].parts[:, 1:] % 10).any()
    )
    assert abs(len(split["validation"]) / 10**7 - 0.05) < 0.001
    assert len(split["validation"]) + len(split["training"]) == 10**7


def test_packed_tokens_cross_parts_and_files(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 5)
    segments = [Segment(str(tmp_path / n), "uint8", 0, 5, content_of(tmp_path / n)) for n in "ab"]
    packed = PackedTokens(segments, numpy.array([[0, 1, 4], [1, 0, 2], [1, 3, 5]]))
    assert bytes(packed.gather(numpy.array([0, 2]), 5).astype("uint8").tobytes()) == b"aaabbabbbb"
    assert packed.boundaries(0, 7) == [3, 5] and packed.place(5) == (str(tmp_path / "b"), 3)
    windows = TokenWindows(packed, 3, 256, mask_documents=True)
    assert windows.read(numpy.array([0, 1]))[1].tolist() == [[97, 97, -100], [98, -100, 98]]


def test_a_nul_byte_anywhere_in_a_text_is_found_where_it_is_read(tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(b"a" * (1 << 21) + b"\0" + b"a" * 99)
    samples = prepared(tmp_path, path=[str(path)]).samples("validation", 64, 256)
    with pytest.raises(CorpusError, match="long.txt is no text: byte 2,097,152 is NUL"):
        samples.read(numpy.arange(len(samples)))


def test_an_array_of_an_archive_is_named_if_there_are_several(tmp_path):
    path = tmp_path / "tokens.npz"
    numpy.savez(path, train=numpy.arange(300) % 7, table=numpy.ones((4, 2)))
    for name, words in (
        ("", "holds train, table; wanted the name of one, such as .*tokens.npz:train"),
        (":trian", "such as .*tokens.npz:train"),
        (":table", r"table of .*tokens.npz has shape \(4, 2\) and dtype float64"),
    ):
        with pytest.raises(CorpusError, match=words):
            prepared(tmp_path, path=[f"{path}{name}"])
    with pytest.raises(CorpusError, match="missing.npz:a does not exist"):
        prepared(tmp_path, path=[str(tmp_path / "missing.npz:a")])
    numpy.savez_compressed(path, train=numpy.arange(300))
    with pytest.raises(ConfigurationError, match="train of .* is compressed"):
        prepared(tmp_path, path=[str(path)])
