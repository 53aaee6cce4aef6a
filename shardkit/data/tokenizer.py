"""Tokenizers: text to token numbers and back.

    open_tokenizer("bytes")                 a token is a byte of UTF-8; there are 256
    open_tokenizer("model/tokenizer.json")  any tokenizer of the library `tokenizers`, or its folder
    tokenizer_of(companions)                the one that travels with a checkpoint

A tokenizer is the content of its files: whoever has the bytes of tokenizer.json has the tokenizer,
and the SHA-256 of these bytes says whether two are the same.
"""

import hashlib
from abc import ABC, abstractmethod
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy

from ..errors import ConfigurationError, CorpusError, InputError
from ..files.reading import parsed_json, read_bytes, wanted

BYTES = "bytes"  # the name of the tokenizer that has no file
MAIN_FILE = "tokenizer.json"
FILES = (MAIN_FILE, "tokenizer_config.json", "special_tokens_map.json")  # those that are read
TEMPLATE = "chat_template.jinja"  # that conversations were written by, and travels with the others
MOST_TOKENS = 1 << 24  # of a vocabulary that a file tells: so many rows a model is given
_MOST_BYTES = 1 << 27  # of each
# Special tokens that end a text where no file beside tokenizer.json says which one does.
_USUAL_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


def token_dtype(vocabulary_size: int) -> numpy.dtype:
    """Return the dtype in which files keep tokens of such a vocabulary: uint16 or uint32."""
    return numpy.dtype(numpy.uint16 if vocabulary_size <= 1 << 16 else numpy.uint32)


class Tokenizer(ABC):
    """Text to token numbers and back.

    name             for lines that people read
    vocabulary_size  every token number is below it
    end_of_text      token number behind each document; None if there is none
    files            {name: content}, what travels beside a model; {} for bytes
    """

    name: str
    vocabulary_size: int
    end_of_text: int | None
    files: dict[str, bytes]

    @property
    def content(self) -> bytes:
        """The bytes that define this tokenizer: those of its tokenizer.json."""
        return self.files[MAIN_FILE]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content, in hex: equal for equal tokenizers."""
        return hashlib.sha256(self.content).hexdigest()

    def encode(self, text: str | bytes) -> numpy.ndarray:
        """Return the token numbers [n] int64 of a text. Errors: as encode_many."""
        return self.encode_many([text])[0]

    def encode_placed(self, texts) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
        """Return the token numbers [n] of each text, and the characters [n, 2] that each is of.

        Errors: ConfigurationError where tokens are no characters.
        """
        raise ConfigurationError(f"{self.name} has no special tokens, which conversations need")

    @abstractmethod
    def encode_many(self, texts) -> list[numpy.ndarray]:
        """Return the token numbers [n] int64 of each text; nothing is added around them.

        texts   str, or bytes of UTF-8
        Errors: CorpusError on a text that is not valid Unicode.
        """

    @abstractmethod
    def decode(self, numbers) -> str:
        """Return the text of token numbers [n]; bytes that are no UTF-8 come as U+FFFD."""


class ByteTokenizer(Tokenizer):
    """A token is a byte of UTF-8; bytes that are no UTF-8 are tokens too."""

    name = BYTES
    vocabulary_size = 256
    end_of_text = None
    content = b'{"type": "bytes"}'

    def __init__(self):
        self.files: dict[str, bytes] = {}

    def encode_many(self, texts):
        """Return the bytes of each text as [n] int64."""
        return [numpy.frombuffer(_as_bytes(t), numpy.uint8).astype(numpy.int64) for t in texts]

    def decode(self, numbers):
        """Return the text; bytes that are no UTF-8 come as U+FFFD."""
        return numpy.asarray(numbers).astype(numpy.uint8).tobytes().decode("utf-8", "replace")


class JSONTokenizer(Tokenizer):
    """A tokenizer of the library `tokenizers`.

    files   {"tokenizer.json": its content, and of FILES and the template what there is}
    where   path, for messages
    Errors: ConfigurationError if the library is missing, or the content is no such tokenizer, or
    draws random numbers.
    """

    def __init__(self, files: dict[str, bytes], where: str = MAIN_FILE):
        self.name = where
        self.files = files
        self._library = _of_library(files[MAIN_FILE], where)
        self.vocabulary_size = 1 + max(self._library.get_vocab().values(), default=-1)
        if self.vocabulary_size > MOST_TOKENS:
            raise InputError(
                f"{where} has a token of number {self.vocabulary_size - 1:,}; wanted numbers below "
                f"{MOST_TOKENS:,}",
                where,
            )
        self.end_of_text = self._find_end(where)

    def encode_many(self, texts):
        """Return the token numbers of each text, as the library finds them."""
        texts = [_as_text(text) for text in texts]
        with _of_tokenizer(self.name):
            found = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [numpy.array(one.ids, numpy.int64) for one in found]

    def encode_placed(self, texts) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
        """Return the token numbers [n] of each text, and the characters [n, 2] that each is of."""
        with _of_tokenizer(self.name):
            found = self._library.encode_batch(list(texts), add_special_tokens=False)
        places = (numpy.array(one.offsets, numpy.int64).reshape(-1, 2) for one in found)
        return [(numpy.array(one.ids, numpy.int64), at) for one, at in zip(found, places)]

    def decode(self, numbers):
        """Return the text, special tokens included."""
        numbers = numpy.asarray(numbers).tolist()
        with _of_tokenizer(self.name):
            return self._library.decode(numbers, skip_special_tokens=False)

    def number_of(self, token: str) -> int | None:
        """Return the number of the token that is written so; None if there is none."""
        return self._library.token_to_id(token)

    def _find_end(self, where: str) -> int | None:
        for name in FILES[1:]:
            beside = f"{name} beside {where}"
            token = parsed_json(self.files.get(name, b"{}"), beside).get("eos_token")
            token = token.get("content") if isinstance(token, dict) else token
            if token is None:
                continue
            wanted(token, str, beside, "eos_token")
            if self.number_of(token) is None:
                raise ConfigurationError(
                    f"{beside} says that {token!r} ends a text, but it is not among the tokens"
                )
            return self.number_of(token)
        special = {token.content for token in self._library.get_added_tokens_decoder().values()}
        return next((self.number_of(token) for token in _USUAL_ENDS if token in special), None)


def open_tokenizer(path: str | Path) -> Tokenizer:
    """Return the tokenizer of this tokenizer.json or its folder, or that of bytes for "bytes".

    Errors: ConfigurationError if there is none.
    """
    if str(path) == BYTES:
        return ByteTokenizer()
    given = Path(path)
    main = given / MAIN_FILE if given.is_dir() else given
    if not main.is_file():
        raise ConfigurationError(
            f"tokenizer {path}: {'it has no ' + MAIN_FILE if given.is_dir() else 'no such file'}; "
            f"wanted a {MAIN_FILE}, a folder that holds one, or {BYTES}"
        )
    beside = [(name, main.with_name(name)) for name in FILES[1:]]
    files = {MAIN_FILE: read_bytes(main, _MOST_BYTES)}
    files |= {name: read_bytes(file, _MOST_BYTES) for name, file in beside if file.is_file()}
    return JSONTokenizer(files, str(main))


def tokenizer_of(files: dict[str, bytes], where: str = MAIN_FILE) -> Tokenizer:
    """Return the tokenizer among the companions of a model; that of bytes if there is none.

    files   {name: content}; other names are left alone
    Errors: ConfigurationError if it cannot be used.
    """
    if MAIN_FILE not in files:
        return ByteTokenizer()
    kept = {name: files[name] for name in (*FILES, TEMPLATE) if name in files}
    return JSONTokenizer(kept, where)


@contextmanager
def _of_tokenizer(where: str):
    """Take what the library raises for a fault of its file. Errors: InputError."""
    try:
        yield
    except BaseException as error:  # plain Exception, and PanicException, which is not even that
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise InputError(f"{where} is no tokenizer that can be used: {error}", where) from None


def library_for(what: str):
    """Return the library tokenizers. Errors: ConfigurationError if it is missing."""
    try:
        import tokenizers
    except ImportError:
        raise ConfigurationError(
            f"{what} needs the library tokenizers: pip install 'shardkit[tokenizers]'"
        ) from None
    return tokenizers


def _of_library(content: bytes, where: str):
    tokenizers = library_for(where)
    about = parsed_json(content, where).get("model")
    dropout = wanted(about, dict, where, "model").get("dropout")
    if dropout:
        raise ConfigurationError(
            f"{where} drops merges at random (model.dropout = {dropout}), so its tokens would "
            "differ each time; set it to null"
        )
    with _of_tokenizer(where):
        library = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
    library.no_truncation()  # many files keep the limits of the model that they were made for
    library.no_padding()
    return library


def _as_bytes(text: str | bytes) -> bytes:
    try:
        return text.encode("utf-8") if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise CorpusError(
            f"a text has no valid UTF-8: character {error.start} is half of a surrogate pair"
        ) from None


def _as_text(text: str | bytes) -> str:
    if isinstance(text, str):
        if not text.isascii():
            _as_bytes(text)
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(f"a text is not valid UTF-8 at byte {error.start}") from None
