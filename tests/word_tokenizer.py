"""A small tokenizer.json: two words, what is unknown, and the end of a text."""

import json

WORDS = {"<|endoftext|>": 0, "a": 1, "b": 2, "?": 9}


def word_json(**changes) -> bytes:
    """The tokenizer.json of a tokenizer that knows two words."""
    parts = {
        "version": "1.0",
        "truncation": {
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": "<|endoftext|>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": WORDS, "unk_token": "?"},
    }
    return json.dumps(parts | changes).encode()
