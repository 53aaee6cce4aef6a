"""A byte-level BPE of a chosen size, trained on a corpus.

The same texts give the same tokenizer, byte for byte.
Source: Neural Machine Translation of Rare Words with Subword Units (arXiv 1508.07909); on bytes, as
in GPT-2.
"""

import json
from collections.abc import Iterator

from ...errors import ConfigurationError, CorpusError
from ..tokenizer import MAIN_FILE, library_for

END_OF_TEXT = "<|endoftext|>"
LEAST_SIZE = 257  # all bytes, and the end of a text
CONFIGURATION = "tokenizer_config.json"


def train_vocabulary(texts: Iterator[str], size: int) -> dict[str, bytes]:
    """Return {name: content} of a tokenizer of `size` tokens: 256 bytes, merges, end of text.

    Errors: ConfigurationError if the library is missing or the size is below LEAST_SIZE,
    CorpusError if the texts have fewer merges.
    """
    if size < LEAST_SIZE:
        raise ConfigurationError(
            f"a vocabulary of {size} tokens; wanted at least {LEAST_SIZE}: 256 bytes and the end "
            "of a text"
        )
    tokenizers = library_for("--train-vocabulary")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    if made.get_vocab_size() < size:
        raise CorpusError(
            f"the text gives a vocabulary of {made.get_vocab_size():,} tokens and no more; wanted "
            f"{size:,}: give more text, or ask for fewer"
        )
    return {MAIN_FILE: made.to_str(pretty=True).encode(), CONFIGURATION: _configuration()}


def _configuration() -> bytes:
    """Return what tells transformers how to open the tokenizer."""
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    return json.dumps(about, indent=1).encode()
