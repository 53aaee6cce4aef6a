"""The settings of language data: the section [data] of a run."""

from dataclasses import dataclass

from ..settings import fixed

AUTO = "auto"
FORMATS = ("text", "tokens", "nanogpt", "megatron", "npy", "npz")
TOKEN_DTYPES = ("uint16", "uint32")
_KEPT = "it is trained on the data that it was started with"


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Files of a run, their shares, and what is held out of them."""

    path: tuple[str, ...] = ()
    weights: tuple[float, ...] = fixed(
        _KEPT,
        (),
        "share of each path in what is trained on, in any unit; none: as much as each has",
        above=0.0,
    )
    validation_percent: float = fixed(
        _KEPT, 5.0, "part of the data held out for validation", "percent", above=0.0, below=100.0
    )
    validation_path: tuple[str, ...] = fixed(
        _KEPT, (), "data for validation, in place of a part held out", is_path=True
    )


@dataclass(frozen=True, kw_only=True)
class TextData(Sources):
    """The text, or the tokens, of a run; the files are read where they are."""

    path: tuple[str, ...] = fixed(
        _KEPT,
        (),
        "files or folders of text, or files of tokens; none: the sources of Python's standard "
        "library",
        is_path=True,
        is_common=True,
    )
    format: str = fixed(
        _KEPT,
        AUTO,
        "text (its bytes are the tokens), tokens (of `shardkit prepare`), nanogpt (.bin), megatron "
        "(.bin and .idx), npy, npz (of several arrays FILE.npz:NAME); auto: by suffix and content",
        among=(AUTO, *FORMATS),
    )
    token_dtype: str | None = fixed(
        _KEPT, None, "dtype of nanogpt files that no meta.pkl describes", among=TOKEN_DTYPES
    )
    mask_documents: bool = fixed(
        _KEPT, False, "do not train to guess the first token of a document from another one"
    )
    maximum_bytes: int | None = fixed(_KEPT, None, "most text to use", "bytes", minimum=1)


@dataclass(frozen=True, kw_only=True)
class ChatData(Sources):
    """The conversations of a run; the files are read where they are."""

    path: tuple[str, ...] = fixed(
        _KEPT, (), "files of `shardkit prepare --chat`", is_path=True, is_common=True
    )
    packing: bool = fixed(
        _KEPT,
        True,
        "put several conversations into a row, each of which sees itself alone; false: one in each",
    )
