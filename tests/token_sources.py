"""Writes the same documents in each format of language data."""

import pickle
import struct

import numpy

from shardkit.testing.data import ByteTokenizer, lay_out_token_file

FORMATS = ("text", "tokens", "nanogpt", "megatron", "npy", "npz")
WITH_DOCUMENTS = ("text", "tokens", "megatron")


def documents(num=40, seed=0, most=60):
    """Arrays of printable bytes [n] int64, which are tokens and text alike."""
    random = numpy.random.default_rng(seed)
    return [random.integers(32, 127, random.integers(20, most)) for _ in range(num)]


def write_documents(folder, name, docs):
    """Write the documents in the format of this name; return the path for data.path."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = numpy.concatenate(docs)
    offsets = numpy.cumsum([0, *map(len, docs)])
    if name == "text":
        for i, doc in enumerate(docs):
            (folder / f"{i:05d}.txt").write_bytes(doc.astype("uint8").tobytes())
        return folder
    if name == "tokens":
        path = folder / "tokens.h5"
        places = lay_out_token_file(path, len(tokens), len(docs), ByteTokenizer())
        with open(path, "r+b") as file:
            for dataset, values in (("tokens", tokens.astype("<u2")), ("documents", offsets)):
                file.seek(places[dataset])
                file.write(values.tobytes())
        return path
    if name == "nanogpt":
        path = folder / "train.bin"
        tokens.astype("<u2").tofile(path)
        (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 256, "itos": {1: "a"}}))
        return path
    if name == "npy":
        path = folder / "tokens.npy"
        numpy.save(path, tokens)
        return path
    if name == "npz":
        numpy.savez(folder / "tokens.npz", heldout=tokens[:9], train=tokens.astype("uint16"))
        return folder / "tokens.npz:train"
    return write_megatron(folder / "corpus", docs, numpy.dtype("<i4"), 4)


def write_megatron(stem, docs, dtype, code):
    """Write NAME.bin and NAME.idx: each document is one sequence."""
    sizes = numpy.array([len(doc) for doc in docs])
    numpy.concatenate(docs).astype(dtype).tofile(stem.with_suffix(".bin"))
    begins = (numpy.cumsum(sizes) - sizes) * dtype.itemsize
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(docs), len(docs) + 1)
    arrays = sizes.astype("<i4"), begins.astype("<i8"), numpy.arange(len(docs) + 1, dtype="<i8")
    content = head + b"".join(array.tobytes() for array in arrays)
    stem.with_suffix(".idx").write_bytes(content)
    return stem.with_suffix(".bin")
