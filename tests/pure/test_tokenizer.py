"""Tokenizers: there and back, what ends a text, what is refused; and files of tokens."""

import numpy
import pytest
from word_tokenizer import word_json

from shardkit import ConfigurationError
from shardkit.testing.base import CorpusError
from shardkit.testing.data import (
    ByteTokenizer,
    lay_out_token_file,
    open_token_file,
    open_tokenizer,
    tokenizer_of,
)

TEXTS = ["", "a b", "naïve façade, 漢字 🙂\n\n  end\t", "x" * 300, "0 12 345\r\n"]


def test_bytes_go_there_and_back():
    tokenizer = ByteTokenizer()
    assert [tokenizer.decode(numbers) for numbers in tokenizer.encode_many(TEXTS)] == TEXTS
    assert tokenizer.encode(b"\xff\x00").tolist() == [255, 0]
    assert tokenizer.decode([104, 255, 105]) == "h\ufffdi"


def test_a_tokenizer_of_the_library_encodes_as_the_library_does(tmp_path):
    library = pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_bytes(word_json())
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.vocabulary_size == 10  # token 9 needs ten rows, though there are four tokens
    # The file's limit of two tokens is that of some model, not of the corpus.
    assert tokenizer.encode("a b a b c").tolist() == [1, 2, 1, 2, 9]
    plain = library.Tokenizer.from_str(word_json(truncation=None).decode())
    for text in ("b a", "", "<|endoftext|> a"):
        assert tokenizer.encode(text).tolist() == plain.encode(text).ids


def test_what_ends_a_text_comes_from_the_files_beside(tmp_path):
    pytest.importorskip("tokenizers")
    content = word_json()
    assert tokenizer_of({"tokenizer.json": content}).end_of_text == 0
    assert (
        tokenizer_of(
            {"tokenizer.json": content, "special_tokens_map.json": b'{"eos_token": "b"}'}
        ).end_of_text
        == 2
    )
    assert tokenizer_of({"tokenizer.json": word_json(added_tokens=[])}).end_of_text is None
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "a"}}')
    from_folder, from_file = open_tokenizer(tmp_path), open_tokenizer(tmp_path / "tokenizer.json")
    assert from_folder.end_of_text == from_file.end_of_text == 1
    assert from_folder.hash == from_file.hash != tokenizer_of({}).hash


@pytest.mark.parametrize(
    "files, words",
    [
        ({"tokenizer.json": b"{"}, "is damaged: Expecting"),
        ({"tokenizer.json": b"[1]"}, "no JSON object"),
        ({"tokenizer.json": b"{}"}, "model = None; wanted dict"),
        ({"tokenizer.json": word_json(model={"type": "BPE", "dropout": 0.1})}, "at random"),
        ({"tokenizer.json": word_json(), "tokenizer_config.json": b'{"eos_token": "z"}'}, "'z'"),
        ({}, "has no tokenizer.json"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(tmp_path, files, words):
    pytest.importorskip("tokenizers")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=words):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("text", [b"a\xff", "a\ud800"])
def test_half_characters_are_refused(text):
    pytest.importorskip("tokenizers")
    with pytest.raises(CorpusError, match="valid"):
        tokenizer_of({"tokenizer.json": word_json()}).encode(text)


# ---- files of tokens -----------------------------------------------------------------------------


def test_a_token_file_keeps_tokens_documents_and_tokenizer(tmp_path):
    path = tmp_path / "tokens.h5"
    tokenizer = ByteTokenizer()
    numbers = numpy.arange(7, dtype=numpy.uint16)
    places = lay_out_token_file(path, 7, 2, tokenizer)
    with open(path, "r+b") as file:
        for name, values in (("tokens", numbers), ("documents", numpy.array([0, 3, 7]))):
            file.seek(places[name])
            file.write(values.tobytes())
    found = open_token_file(path)
    assert found.tokens.tolist() == numbers.tolist() and found.tokens.dtype == numpy.uint16
    assert found.documents.tolist() == [0, 3, 7]
    assert (found.vocabulary_size, found.end_of_text) == (256, None)
    assert found.tokenizer_hash == tokenizer.hash and found.tokenizer_files == {}
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CorpusError, match="cut short|cannot be read"):
        open_token_file(path)
    path.write_bytes(b"no HDF5")
    with pytest.raises(CorpusError, match="cannot be read"):
        open_token_file(path)
