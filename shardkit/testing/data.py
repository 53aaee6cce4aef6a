"""data: sources of samples and of tokens, and how they are prepared."""

from . import open_door

ROOM = "shardkit.data"
NAMES = {
    "cipher": "decipher encipher tables",
    "columns": "Columns",
    "contents": "Contents content_of content_of_array",
    "corpus": "Corpus find_corpora",
    "draw": "Draw",
    "formats": "format_named",
    "hdf5_virtual": "lookup3",
    "language": "LanguageData",
    "mapped": "FileMap",
    "mixture": "Mixture",
    "order": "ByPosition EpochOrder",
    "packed": "IGNORED PackedTokens TokenWindows",
    "position": "Position",
    "raw.encodings": (
        "Categories Classes ColumnEncoder Numbers Times as_names from_json time_parts to_json"
    ),
    "raw.findings": "ColumnFindings Fitting classes",
    "raw.rows": "has_open_quote row_ends",
    "prepare.inputs": "cut_into_blocks find_inputs",
    "prepare.job": "Preparation prepare_tokens",
    "prepare.parts": "PartsFolder",
    "prepare.readers": "TextField",
    "prepare.unpacking": "head_of unpack",
    "prepare.vocabulary": "train_vocabulary",
    "samples": "Selected reader_of",
    "scaling": "Moments Scaling",
    "segments": "Segment",
    "settings": "TextData",
    "split": "split_documents split_rows",
    "stream": "Stream",
    "tables": "RawSamples TableSamples open_table",
    "token_file": "is_token_file lay_out_token_file open_token_file",
    "tokenizer": "ByteTokenizer open_tokenizer tokenizer_of",
}
MODULES = {
    "contents": "contents",
    "csv": "raw.csv",
    "inputs": "prepare.inputs",
    "job": "prepare.job",
    "readers": "prepare.readers",
    "segments": "segments",
    "unpacking": "prepare.unpacking",
    "work": "prepare.work",
}

open_door(__name__)
