"""A text that is shown while it is generated comes in whole characters, without stop texts."""

import pytest

from shardkit.testing.data import ByteTokenizer
from shardkit.testing.task import Sample, TextStream, continuation, until


def shown(text, stop=()):
    """The pieces, and the text without streaming."""
    tokenizer, pieces = ByteTokenizer(), []
    prompt = tokenizer.encode("é>")
    stream = TextStream(tokenizer, prompt, stop, pieces.append)
    content = text.encode("utf-8", "surrogateescape")
    for byte in content:
        stream.add(byte)
    stream.finish()
    return pieces, until(stop, continuation(tokenizer, prompt, list(content)))


def test_each_character_is_shown_as_soon_as_it_is_whole():
    pieces, _ = shown("aé漢🙂.")
    assert pieces == ["a", "é", "漢", "🙂", "."]


@pytest.mark.parametrize(
    "text, stop, last",
    [
        ("one\n\ntwo", ["\n\n"], "one"),
        ("a###b", ["###"], "a"),
        ("a##b", ["###"], "a##b"),
        ("a##", ["###"], "a##"),
        ("aab", ["aaa", "ab"], "a"),
        ("abcabd", ["abd"], "abc"),
        ("漢漢字x", ["漢字"], "漢"),
        ("x", ["x"], ""),
        ("\udcff\udcc3", [], "\ufffd\ufffd"),
        ("", ["x"], ""),
    ],
)
def test_the_pieces_are_the_text_and_no_part_of_a_stop_text(text, stop, last):
    pieces, whole = shown(text, stop)
    assert "".join(pieces) == whole == last
    assert all(pieces)


@pytest.mark.parametrize(
    "tokens, prompt, window, wanted",
    [
        (None, 4, 128, 124),
        (None, 4, 1024, 200),
        (None, 8, 8, 4),
        (None, 300, 256, 128),
        (0, 4, 128, 0),
        (500, 4, 128, 500),
    ],
)
def test_a_sample_is_as_long_as_the_model_sees_unless_something_is_asked(
    tokens, prompt, window, wanted
):
    assert Sample(tokens=tokens).num_tokens(range(prompt), window) == wanted
