"""`shardkit prepare`: one file for any number of ranks and any history, and what is refused."""

import bz2
import gzip
import json
import lzma
import random
import threading

import numpy
import pytest

from shardkit import ConfigurationError, run_ranks
from shardkit.testing.base import CorpusError
from shardkit.testing.data import (
    PartsFolder,
    Preparation,
    inputs,
    job,
    open_token_file,
    open_tokenizer,
    prepare_tokens,
    readers,
    unpacking,
    work,
)

WORDS = ["sun", "naïve", "漢字", "🙂", "x" * 30, "12,5", "end.\n", "a\r\n", "\n\n"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 256 bytes, so that a small corpus has many."""
    monkeypatch.setattr(readers, "PIECE_BYTES", 64)
    monkeypatch.setattr(inputs, "LEAST_BLOCK", 256)


def some_text(seed, num_words):
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(num_words))


@pytest.fixture
def corpus(tmp_path):
    """(paths, documents): a text, JSON lines with an empty line in a folder; no line end at the
    end.
    """
    documents = [some_text(seed, 5 * seed) for seed in range(25)]
    text = some_text(99, 400)
    folder = tmp_path / "lines"
    folder.mkdir()
    lines = [json.dumps({"id": 1, "text": document}) for document in documents]
    (folder / "a.jsonl").write_text("\n".join([*lines[:10], "", *lines[10:20]]) + "\n")
    (folder / "b.jsonl").write_text(json.dumps({"text": documents[20]}, ensure_ascii=False))
    (folder / "c.jsonl").write_text("\n".join(lines[21:]))
    (tmp_path / "text.txt").write_text(text, newline="")
    return [str(folder), str(tmp_path / "text.txt")], [*documents, text]


def prepared(num_ranks, output, paths, tokenizer="bytes", **more):
    preparation = Preparation(tuple(paths), output, tokenizer, **more)
    return run_ranks(num_ranks, lambda backend: prepare_tokens(backend, preparation))[0]


@pytest.mark.thorough
def test_the_file_is_the_same_for_any_number_of_ranks_and_holds_the_documents(tmp_path, corpus):
    paths, documents = corpus
    contents = set()
    for num_ranks in (1, 2, 3, 4):
        output = tmp_path / f"{num_ranks}.h5"
        totals = prepared(num_ranks, output, paths)
        contents.add(output.read_bytes())
        assert not output.with_name(output.name + ".parts").exists()
    assert len(contents) == 1
    found = open_token_file(output)
    assert totals.num_documents == len(documents) and totals.num_tokens == len(found.tokens)
    decode = open_tokenizer("bytes").decode
    ends = found.documents
    assert [decode(found.tokens[a:b]) for a, b in zip(ends, ends[1:])] == documents


def test_compressed_files_are_read_as_what_they_hold_and_unpacked_once(
    tmp_path, corpus, monkeypatch
):
    paths, _ = corpus
    prepared(1, tmp_path / "plain.h5", paths)
    packs = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    files = [*sorted((tmp_path / "lines").iterdir()), tmp_path / "text.txt"]
    for file, suffix in zip(files, [*packs, ".gz"]):
        file.with_name(file.name + suffix).write_bytes(packs[suffix](file.read_bytes()))
        file.unlink()
    paths = [paths[0], paths[1] + ".gz"]

    def die(*assembled, **how):
        raise KeyboardInterrupt

    with monkeypatch.context() as struck:
        struck.setattr(job, "assemble", die)
        with pytest.raises(KeyboardInterrupt):
            prepared(2, tmp_path / "packed.h5", paths)
    monkeypatch.setattr(unpacking, "_copy", die)  # it was done before
    prepared(3, tmp_path / "packed.h5", paths)
    assert (tmp_path / "packed.h5").read_bytes() == (tmp_path / "plain.h5").read_bytes()
    assert not (tmp_path / "packed.h5.parts").exists()


@pytest.fixture
def vocabulary(tmp_path, corpus):
    """The path of a byte-level BPE of 290 tokens, trained on the corpus."""
    pytest.importorskip("tokenizers")
    (tmp_path / "of").mkdir()
    prepared(2, tmp_path / "of" / "tokens.h5", corpus[0], None, train_vocabulary=290)
    return tmp_path / "of" / "tokenizer.json"


@pytest.mark.thorough
def test_a_vocabulary_is_trained_once_and_its_file_is_that_of_the_tokenizer(
    tmp_path, corpus, vocabulary
):
    paths, documents = corpus
    prepared(3, tmp_path / "tokens.h5", paths, str(vocabulary))
    assert (tmp_path / "tokens.h5").read_bytes() == vocabulary.with_name("tokens.h5").read_bytes()
    (tmp_path / "again").mkdir()
    prepared(1, tmp_path / "again" / "tokens.h5", paths, None, train_vocabulary=290)
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == vocabulary.read_bytes()
    tokenizer = open_tokenizer(vocabulary)
    assert tokenizer.vocabulary_size == 290
    wanted = [[*tokenizer.encode(text), tokenizer.end_of_text] for text in documents]
    found = open_token_file(tmp_path / "tokens.h5")
    assert found.tokens.tolist() == sum(wanted, [])  # the text too, though it is cut into pieces
    assert found.documents.tolist() == [0, *numpy.cumsum([len(each) for each in wanted])]
    assert found.tokenizer_files["tokenizer.json"] == vocabulary.read_bytes()
    with pytest.raises(CorpusError, match="tokens and no more; wanted 60,000"):
        prepared(2, tmp_path / "b.h5", paths, None, train_vocabulary=60000)


@pytest.mark.parametrize("at", (0, 1, 4, 11))
@pytest.mark.thorough(but=2)
def test_a_job_that_was_killed_goes_on_with_the_parts_that_are_left(
    tmp_path, corpus, monkeypatch, at
):
    paths, _ = corpus
    prepared(1, tmp_path / "whole.h5", paths)
    folder = PartsFolder(tmp_path / "tokens.h5", "any")
    write, encode = PartsFolder.write, work.encode_block
    encoded = []

    def killed(self, *part):
        if len(self.parts()) >= at:
            raise OSError("killed")
        return write(self, *part)

    def counted(*block):
        encoded.append(1)
        return encode(*block)

    monkeypatch.setattr(PartsFolder, "write", killed)
    with pytest.raises(OSError, match="killed"):
        prepared(2, tmp_path / "tokens.h5", paths)
    assert not (tmp_path / "tokens.h5").exists()
    parts = folder.parts()
    assert at <= len(parts) <= at + 1
    if at == 4:
        damaged = next(iter(parts.values())).path
        damaged.write_bytes(b"?" + damaged.read_bytes()[1:])
    monkeypatch.setattr(PartsFolder, "write", write)
    monkeypatch.setattr(work, "encode_block", counted)
    prepared(3, tmp_path / "tokens.h5", paths)
    assert (tmp_path / "tokens.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    num_blocks = len(inputs.cut_into_blocks(inputs.find_inputs(paths), "text"))
    assert len(encoded) == num_blocks - len(parts) + (at == 4)


def test_parts_of_a_file_that_has_changed_are_made_again(tmp_path, corpus):
    paths, documents = corpus
    broken = tmp_path / "lines" / "b.jsonl"
    right = broken.read_bytes()
    broken.write_bytes(b"{")
    with pytest.raises(CorpusError, match="b.jsonl line 1 is no JSON"):
        prepared(2, tmp_path / "tokens.h5", paths)
    kept = PartsFolder(tmp_path / "tokens.h5", "any").parts()
    assert kept and not (tmp_path / "tokens.h5").exists()
    broken.write_bytes(right)
    prepared(2, tmp_path / "tokens.h5", paths)
    assert len(open_token_file(tmp_path / "tokens.h5").documents) == len(documents) + 1


@pytest.mark.parametrize("num_ranks", (1, 2))
def test_the_first_error_of_the_corpus_is_the_one_that_is_raised(tmp_path, monkeypatch, num_ranks):
    lines = [json.dumps({"text": "x" * 60})] * 100
    lines[40] = lines[43] = lines[90] = '{"text": 3}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    encode, meeting = work.encode_block, threading.Barrier(num_ranks)

    def fail_together(*block):
        try:
            return encode(*block)
        except CorpusError:
            meeting.wait(500)  # the other rank finds its error too
            raise

    monkeypatch.setattr(work, "encode_block", fail_together)
    with pytest.raises(CorpusError, match="a.jsonl line 41 has no text in 'text' but a value of"):
        prepared(num_ranks, tmp_path / "tokens.h5", [str(tmp_path / "a.jsonl")])


WRONG = {
    "no JSON": ("a.jsonl", b'{"text": "a"}\n{oops\n', {}, "a.jsonl line 2 is no JSON: Expecting"),
    "a list": ("a.jsonl", b"[1]", {}, "line 1 is a JSON list"),
    "no field": ("a.jsonl", b'\n{"texts": "a"}', {}, "line 2 has no field .*--field=texts"),
    "null": ("a.jsonl", b'{"text": null}', {}, "line 1 has no value in"),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}', {}, "line 1 has half of a surrogate"),
    "deep": ("a.jsonl", b"[" * 200000, {}, "line 1 is nested too deeply"),
    "bad line": ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}', {}, "line 2 is not valid UTF-8"),
    "Latin-1": ("a.txt", b"one\ntwo\nna\xefve", {}, "a.txt line 3 is not valid UTF-8"),
    "late": ("a.txt", b"line\n" * 99 + b"\xe6", {}, "a.txt line 100 is not valid UTF-8"),
    "binary": ("a.txt", b"a\0b", {}, "holds NUL bytes"),
    "late NUL": ("a.txt", b"line\n" * 999 + b"a\0b", {}, "a.txt is no text: line 1000 holds a NUL"),
    "lines in capitals": ("A.JSONL", b'{"text": "a"}\n{oops\n', {}, "A.JSONL line 2 is no JSON"),
    "packed in capitals": ("A.TXT.GZ", gzip.compress(b"a")[:9], {}, "A.TXT.GZ is damaged"),
    "Parquet in capitals": ("A.Parquet", b"PAR1", {}, "is no Parquet file"),
    "a PDF": ("a.txt", b"%PDF-1.4\n", {}, "a.txt is no text: it is a PDF"),
    "NUL, packed": ("a.gz", gzip.compress(b"l\n" * 999 + b"\0"), {}, "a.gz is no text: line 1000"),
    "half a gzip": ("a.jsonl.gz", gzip.compress(b"{}" * 9999)[:50], {}, "a.jsonl.gz is damaged"),
    "no bzip2": ("a.bz2", b"BZh9what", {}, "a.bz2 is damaged and cannot be unpacked"),
    "no xz": ("a.xz", b"text", {}, "a.xz is damaged and cannot be unpacked"),
    "a line, packed": (
        "a.jsonl.xz",
        lzma.compress(b"\n[1]"),
        {},
        "a.jsonl.xz line 2 is a JSON list",
    ),
    "Zstandard": ("a.jsonl.zst", b"\x28\xb5", {}, "unzstd unpacks it"),
    "packed Parquet": ("a.parquet.gz", gzip.compress(b"PAR1"), {}, "compressed once more"),
    "empty": ("a.txt", b"", {}, "no text in"),
    "field of text": ("a.txt", b"a", {"field": "body"}, "--field=body has no use"),
    "no tokenizer": ("a.txt", b"a", {"tokenizer": "nowhere"}, "nowhere: no such file"),
    "no folder": ("a.txt", b"a", {"output": "nowhere/t.h5"}, "there is no folder"),
    "output is there": ("a.txt", b"a", {"output": "a.txt"}, "exists already"),
    "no Parquet": ("a.parquet", b"PAR1", {}, "is no Parquet file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_refused_in_one_sentence(tmp_path, name):
    file, content, changes, words = WRONG[name]
    if file.lower().endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / file).write_bytes(content)
    output = tmp_path / changes.pop("output", "tokens.h5")
    before = output.exists()
    with pytest.raises((ConfigurationError, CorpusError), match=words) as raised:
        prepared(2, output, [str(tmp_path / file)], **changes)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert output.exists() == before


# ---- Parquet -------------------------------------------------------------------------------------


def write_table(path, **columns):
    library = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    library.write_table(pyarrow.table(columns), path, row_group_size=30)


def test_rows_of_parquet_are_documents(tmp_path):
    documents = [some_text(seed, seed) for seed in range(70)]
    write_table(tmp_path / "a.parquet", number=range(70), body=documents)
    contents = set()
    for num_ranks in (1, 2, 3):
        output = tmp_path / f"{num_ranks}.h5"
        prepared(num_ranks, output, [str(tmp_path)], field="body")
        contents.add(output.read_bytes())
    found = open_token_file(output)
    assert len(contents) == 1 and len(found.documents) == 71
    assert found.tokens[found.documents[69] :].astype("u1").tobytes().decode() == documents[69]


@pytest.mark.parametrize(
    "columns, words",
    [
        ({"texts": ["a"]}, "no column 'text'; did you mean --field=texts"),
        ({"text": [1]}, "column 'text' is int64; wanted strings"),
        ({"text": ["a"] * 40 + [None]}, "a.parquet row 41 has no value in 'text'"),
    ],
)
def test_columns_that_are_no_text_are_refused(tmp_path, columns, words):
    write_table(tmp_path / "a.parquet", **columns)
    with pytest.raises(CorpusError, match=words):
        prepared(2, tmp_path / "tokens.h5", [str(tmp_path / "a.parquet")])


def test_bytes_in_a_column_that_are_no_text_are_refused(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    starts = numpy.array([0, 1, 2], numpy.int32)
    buffers = [None, pyarrow.py_buffer(starts), pyarrow.py_buffer(b"a\xff")]
    write_table(
        tmp_path / "a.parquet", text=pyarrow.Array.from_buffers(pyarrow.string(), 2, buffers)
    )
    with pytest.raises(CorpusError, match="a.parquet cannot be read from row 1 on: .*UTF8"):
        prepared(2, tmp_path / "tokens.h5", [str(tmp_path / "a.parquet")])
