"""python fuzz_readers.py FOLDER READER,READER FIRST COUNT: damage copies of good files, and see
what their readers say.

Prints a line for each file that is begun, and at last a JSON object: how many of each outcome, and
what went wrong. Damage number N is the same in every run.

    read      the file was read well, damaged or not
    refused   a ShardkitError that names the file, or that it is missing
    problem   any other exception, or one that names no file, or memory was asked for in vain

A reader has 1 GiB of address space more than when it began, and 5 s of processor time for a file.
Where it needs more, or follows a pointer, a signal ends this process; who started it counts that.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import threading
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import h5py
import numpy
from damage import ANY_BYTES, DEEP, NODES, STRANGE, deep_text, edit_json
from token_sources import documents, write_documents
from word_tokenizer import word_json

import shardkit as sk
from shardkit import load_adapter, run_ranks, save_adapter
from shardkit.testing.checkpoint import TransformersFolder, to_safetensors
from shardkit.testing.cli import Given
from shardkit.testing.comm import Ledger, hang_report, hang_suspects, read_ledger
from shardkit.testing.data import (
    LanguageData,
    Preparation,
    Scaling,
    TableSamples,
    TextData,
    TextField,
    cut_into_blocks,
    find_inputs,
    open_table,
    open_tokenizer,
    prepare_tokens,
    train_vocabulary,
)
from shardkit.testing.ensemble import SweepRecord
from shardkit.testing.ensemble import Trial as OneTrial
from shardkit.testing.plan import FOLDER as HARDWARE
from shardkit.testing.plan import read_cluster
from shardkit.testing.report import (
    describe_run,
    describe_sweep,
    page_of,
    page_of_sweep,
    read_run_folder,
    read_sweep,
)
from shardkit.testing.schedule import lower, order_named, simulate
from shardkit.testing.task import Described, load_task
from shardkit.testing.train import configuration_of, stored_settings, stored_task

MOST_MEMORY = 1 << 30
CPU_SECONDS = 5
WALL_SECONDS = 90  # of a file: for one that is waited for, on a busy machine
ROWS = 60
SOME_ROWS = numpy.array([ROWS - 1, 0, 7, 7, ROWS // 2])

# ---- good files ----------------------------------------------------------------------------------


def numbers():
    generator = numpy.random.default_rng(3)
    return generator.normal(size=(ROWS, 4)).astype("float32"), generator.integers(0, 3, ROWS)


def text_of(docs):
    return "\n".join(bytes(doc.astype("uint8")).decode() for doc in docs)


def make_language(name):
    return lambda folder: write_documents(folder, name, documents(12))


def make_tokens_with_tokenizer(folder):
    (folder.parent / "t").mkdir()
    (folder.parent / "t/tokenizer.json").write_bytes(word_json())
    (folder.parent / "t/a.txt").write_text("a b a b b a\n" * 40)
    made = Preparation(
        (str(folder.parent / "t/a.txt"),), folder / "tokens.h5", str(folder.parent / "t")
    )
    run_ranks(1, lambda backend: prepare_tokens(backend, made))


def make_text(folder):
    (folder / "a.txt").write_text(text_of(documents(12)))


def make_arrays(folder):
    x, y = numbers()
    numpy.save(folder / "t.npy", x)
    numpy.save(folder / "big.npy", x.astype(">f8"))
    numpy.savez(folder / "t.npz", x=x, y=y)


def make_hdf5(folder):
    x, y = numbers()
    with h5py.File(folder / "t.h5", "w") as file:
        file["x"] = x
        file["group/deeper/y"] = y
        file.create_dataset("c", data=x, chunks=(16, 4))
        file.create_dataset("z", data=x, chunks=(16, 4), compression="gzip", shuffle=True)
        file.create_dataset("text", data=["a", "b"], dtype=h5py.string_dtype())
        file["records"] = numpy.zeros(ROWS, [("a", "i4"), ("b", "f8")])
    with h5py.File(folder / "new.h5", "w", libver="latest") as file:
        file["x"] = x.astype(">f4")
        file.create_dataset("c", data=x, chunks=(16, 2), maxshape=(None, 4), compression="lzf")
        file.create_dataset("z", data=x, chunks=(16, 4), scaleoffset=3)
        file.attrs["about"] = "text"
        virtual = h5py.VirtualLayout((ROWS, 4), "f4")
        virtual[:] = h5py.VirtualSource("t.h5", "x", (ROWS, 4))
        file.create_virtual_dataset("v", virtual)


def make_csv(folder):
    x, y = numbers()
    lines = [",".join(map(str, (*a.tolist(), b))) for a, b in zip(x, y)]
    (folder / "t.csv").write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
    (folder / "t.csv.gz").write_bytes(gzip.compress(b"a;b\n" + b"1,5;x\n" * ROWS, mtime=0))
    (folder / "quoted.tsv").write_text(
        "\n".join(['"a"\tb', *(f'"{a}"\t{b}' for a, b in zip(x[:, 0], y))])
    )


def make_parquet(folder):
    import pyarrow
    from pyarrow import parquet

    x, y = numbers()
    columns = {"a": x[:, 0], "b": x[:, 1].astype("f8"), "y": y, "text": [str(n) for n in y]}
    table = pyarrow.table(columns)
    parquet.write_table(table, folder / "t.parquet", row_group_size=25)
    columns |= {"when": y.astype("M8[D]"), "category": table["text"].dictionary_encode()}
    columns["nested"] = [{"a": n, "b": [n, n]} for n in range(ROWS)]
    table = pyarrow.table(columns)
    parquet.write_table(table, folder / "z.parquet", compression="zstd", use_dictionary=False)
    with pyarrow.ipc.new_file(folder / "t.arrow", table.schema) as file:
        file.write_table(table, 25)


def make_inputs(folder):
    docs = documents(12)
    lines = "".join(json.dumps({"text": text_of([doc])}) + "\n" for doc in docs).encode()
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "plain.txt").write_text(text_of(docs))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (folder / "c.jsonl.bz2").write_bytes(bz2.compress(lines))
    (folder / "d.jsonl.xz").write_bytes(lzma.compress(lines) + lzma.compress(lines))
    make_parquet(folder)


def gpt():
    return sk.models.GPT(vocabulary_size=16, sequence_length=8, width=8, layers=2, heads=2)


def make_transformers(folder):
    run_ranks(
        1,
        lambda backend: sk.DDPModel(gpt(), sk.ShardingConfiguration(backend)).save_model(
            folder.parent / "store"
        ),
    )
    to_safetensors(folder.parent / "store", folder / "one")
    shutil.copytree(folder / "one", folder / "two")
    (folder / "two/model.safetensors").rename(folder / "two/part.safetensors")
    names = TransformersFolder(folder / "one")._tensors
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "part.safetensors")}
    (folder / "two/model.safetensors.index.json").write_text(json.dumps(index))
    for each in ("one", "two"):
        (folder / each / "tokenizer.json").write_bytes(word_json())


def make_adapter(folder):
    model = gpt()
    sk.nn.apply_lora(model, "*.attention.output", "*.mlp.up", rank=2)
    save_adapter(model, folder / "adapter")


def make_toml(folder):
    settings = configuration_of(load_task("table"))().replace({"run.task": "table"})
    lines = settings.toml_text().splitlines(keepends=True)
    (folder / "run.toml").write_text("".join(x for x in lines if not x.startswith("epochs")))
    for name in ("cpu-node", "a100-80gb-hdr"):
        shutil.copy(HARDWARE / f"{name}.toml", folder / f"{name}.toml")


def program_of_a_step():
    return simulate(lower(order_named("1f1b")(2, 3, 1), dict.fromkeys(range(2), 1)), {})


def make_run(folder):
    x, y = numbers()
    numpy.savez(folder / "t.npz", x=x, y=y)
    timeline = program_of_a_step()
    settings = configuration_of(load_task("table"))().to_dict()
    mesh = {"pipeline": 2, "data": 1, "tensor": 1}
    table = {"weights": [1, 2], "all at once": [3, 4], "resident process": [5, 6]}
    records = [
        {"step": 1, "loss": 2.5, "learning_rate": 1e-3, "time": 1.5},
        {"step": 2, "validation_loss": 2.25, "accuracy": 0.5, "time": 2.5},
        {"step": 2, "memory_bytes": table, "time": 3.0},
        {"step": 3, "checkpoint_pause_seconds": 0.25, "time": 4.0},
        {"step": 3, "skipped_steps": 1, "time": 4.5},
    ]
    rank = {"node": "n", "cores": "0", "threads": 1, "pipeline": 0, "data": 0, "tensor": 0}
    ranks = {
        "started": 1.5,
        "first_step": 0,
        "parameter_count": 100,
        "policy": "FSDP",
        "schedule": "1f1b",
        "micro_batches": 3,
        "bubble_fraction": 0.2,
        "device": "cpu",
        "mesh": mesh,
        "ranks": [{"rank": number, **rank} for number in range(2)],
    }
    step = {
        "step": 16,
        "seconds": 1.5,
        "schedule": "1f1b",
        "micro_batches": 3,
        "device": "cpu",
        "ranks": {
            str(rank): [[str(event.action), event.start, event.end] for event in events]
            for rank, events in timeline.events.items()
        },
    }
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    (folder / "ranks.json").write_text(json.dumps(ranks))
    (folder / "timeline.json").write_text(json.dumps(step))
    (folder / "tracking.json").write_text(json.dumps({"id": "abc"}))
    (folder / "configuration.json").write_text(json.dumps(settings))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints/step-00000001").mkdir()
    (folder / "data").mkdir()
    found = Described(("x",), ("x[0]", "x[1]"), ("y",), Scaling.none(2), Scaling.none(1), 0, (3, 4))
    (folder / "data/table.json").write_bytes(found.to_json())
    path = write_documents(folder / "texts", "npy", documents(12))
    settings = TextData(path=(str(path),))
    LanguageData.prepare(folder / "data", settings, resume=False).store(folder / "data")


def make_ledgers(folder):
    (folder / "stacks").mkdir()
    for rank in range(3):
        ledger = Ledger(folder, rank, 3)
        for number in range(1, 9 + rank):
            ledger.begin("all_reduce", "world", (0, 1, 2), number)
            ledger.describe(numpy.dtype("float32"), 10)
            ledger.end()
        ledger.begin("isend" if rank else "broadcast", "world/1.0", (2,), None if rank else 20)
        ledger.close()  # before its file is damaged: it would write into memory that is gone
        (folder / "stacks" / f"rank-{rank:05d}.stacks").write_text("Thread 1\n  File x\n")


def make_tokenizers(folder):
    (folder / "words").mkdir()
    (folder / "words/tokenizer.json").write_bytes(word_json())
    (folder / "words/tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    (folder / "bpe").mkdir()
    text = "some words and some more words of a text that has words\n" * 20
    for name, content in train_vocabulary(iter([text]), 270).items():
        (folder / "bpe" / name).write_bytes(content)


# ---- readers -------------------------------------------------------------------------------------


def read_language(path, **settings):
    data = TextData(path=(str(path),), **settings)
    found = LanguageData.prepare(path.parent, data, resume=False)
    found.check_tokens(1 << 16)
    for part in ("training", "validation"):
        samples = found.samples(part, 4, 1 << 16)
        samples.read(numpy.array([0, len(samples) - 1, len(samples) // 2]))
    found.tokenizer()


def read_columns(path):
    table = open_table(path)
    names = [name for name, field in table.fields.items() if field.dtype is not None]
    for group in range(len(table.begins) - 1):
        columns = table.group(group, names)
        rows = table.begins[group + 1] - table.begins[group]
        assert {len(column) for column in columns.values()} <= {rows}
    if table.begins[-1]:
        table.row_text(int(table.begins[-1]) - 1)
    table.fingerprint()


def read_table(path):
    table = open_table(path)
    for field in table.fields.values():
        if field.dtype is None:
            continue
        try:
            samples = TableSamples(table, [field.name], dtype=None)
        except sk.ConfigurationError as error:
            if str(path) in str(error):
                continue
            raise
        if len(samples):
            wanted = [0, len(samples) - 1, len(samples) // 2]
            samples.read(numpy.array([*wanted, *SOME_ROWS[SOME_ROWS < len(samples)]]))
    TableSamples(table).fingerprint()


def read_inputs(path):
    unpacked = path.parent.parent / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    inputs = [one.unpacked(unpacked, lambda: None) for one in find_inputs([str(path)])]
    for block in cut_into_blocks(inputs, TextField("text")):
        for _ in block.input.reader(TextField("text")).pieces(block.span):
            pass


def read_transformers(folder):
    opened = TransformersFolder(folder)
    for tensor, _, values in opened:
        assert values.size, tensor
    open_tokenizer(folder / "tokenizer.json")
    opened.companions()


def read_run(folder):
    page_of([read_run_folder(folder)])
    describe_run(folder)


def make_sweep(folder):
    trials = [
        OneTrial(0, {"a.b": 1.5, "a.c": "x"}, "finished", 7, 0.25, [[3, 0.5]], [[3, 1]]),
        OneTrial(1, {"a.b": 2.5, "a.c": "y"}, "failed", error="ValueError: no"),
    ]
    curves = {0: {"validation_loss": numpy.array([[3.0, 0.5], [7.0, 0.25]])}}
    SweepRecord({"seed": 3}, trials, curves).write(folder)


def read_sweep_folder(folder):
    page_of_sweep(read_sweep(folder))
    describe_sweep(folder)


def read_settings(folder):
    from shardkit.testing.train import _known_id

    stored_task(folder)
    task = load_task("table")(stored_settings(folder, load_task("table")))
    task.open(folder)
    data = TextData(path=("x",))
    for found in (
        LanguageData.prepare(folder / "data", data, resume=True),
        LanguageData.open(folder / "data", data),
    ):
        samples = found.samples("training", 4, 256)
        samples.read(numpy.array([0, len(samples) - 1]))
    _known_id(folder)


def read_ledgers(folder):
    for path in sorted(folder.glob("*.ledger")):
        try:
            for slot in range(3):
                read_ledger(path, slot)
        except sk.CheckpointError as error:
            assert str(path) in str(error), error
    hang_report(folder)
    hang_suspects(folder)


def read_tokenizer(folder):
    tokenizer = open_tokenizer(folder)
    tokenizer.decode(tokenizer.encode("some words of a text")[:5])


def files_in(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def every(read, *suffixes):
    """A reader of each file in the folder that ends so."""

    def read_all(folder, victim):
        for path in [victim] if victim.suffix in suffixes else []:
            read(path)

    return read_all


def whole(read, *below):
    """A reader of the folder, or of these folders in it."""

    def read_all(folder, victim):
        for place in below or (".",):
            if folder / place in victim.parents:
                read(folder / place)

    return read_all


def text_reader(folder, victim):
    read_language(folder)


def language(name, **settings):
    return lambda folder, victim: read_language(folder / name, **settings)


def npz_tokens(folder, victim):
    data = TextData(path=(str(folder / "tokens.npz:train"),))
    LanguageData.prepare(folder, data, resume=False).samples("training", 4, 256).read(
        numpy.array([0])
    )


def toml_reader(folder, victim):
    if victim.name == "run.toml":
        given = Given.read(str(victim), [])
        given.settings()
    else:
        read_cluster(victim)


# {name: (how good files are made, how one is read when the file `victim` was damaged)}
READERS = {
    "tokens": (make_language("tokens"), language("tokens.h5")),
    "tokens with a tokenizer": (make_tokens_with_tokenizer, language("tokens.h5")),
    "megatron": (make_language("megatron"), language("corpus.bin")),
    "npy": (make_language("npy"), language("tokens.npy")),
    "npz": (make_language("npz"), npz_tokens),
    "nanogpt": (make_language("nanogpt"), language("train.bin")),
    "text": (make_language("text"), text_reader),
    "text file": (make_text, language("a.txt")),
    "arrays": (make_arrays, every(read_table, ".npy", ".npz")),
    "hdf5": (make_hdf5, every(read_table, ".h5")),
    "csv": (make_csv, every(read_columns, ".csv", ".tsv", ".gz")),
    "columns": (make_parquet, every(read_columns, ".parquet", ".arrow")),
    "inputs": (
        make_inputs,
        every(read_inputs, ".jsonl", ".txt", ".gz", ".bz2", ".xz", ".parquet"),
    ),
    "safetensors": (make_transformers, whole(read_transformers, "one", "two")),
    "adapter": (
        make_adapter,
        lambda folder, victim: load_adapter(gpt(), folder / "adapter"),
    ),
    "toml": (make_toml, toml_reader),
    "report": (make_run, whole(read_run)),
    "sweep": (make_sweep, whole(read_sweep_folder)),
    "run": (make_run, whole(read_settings)),
    "ledgers": (make_ledgers, whole(read_ledgers)),
    "tokenizer": (make_tokenizers, whole(read_tokenizer, "words", "bpe")),
}
JSON = {".json"}
# files of a reader's folder that it does not read
UNREAD = {
    "report": {"tracking.json", "table.json", "index.json", "t.npz", "tokens.npy"},
    "run": {"metrics.jsonl", "ranks.json", "timeline.json", "t.npz"},
    "safetensors": {"manifest.json"},
    "nanogpt": set(),
}

# ---- damage that knows the format ----------------------------------------------------------------


def edit_text(rng, content):
    """Put strange words in the place of words and numbers."""
    import re

    text = content.decode("utf-8", "surrogateescape")
    words = list(re.finditer(r"[\w.+-]+|\"[^\"\n]*\"", text))
    for word in sorted(rng.sample(words, min(len(words), rng.choice((1, 1, 2, 4)))), key=id):
        strange = rng.choice([*map(str, STRANGE), "9" * 5000, '"', "[", "{", "=", "\0", "-", "1_0"])
        text = text.replace(word[0], strange, 1)
    content[:] = text.encode("utf-8", "surrogateescape")[: 1 << 22]


def edit_lines(rng, content):
    lines = bytes(content).split(b"\n")
    at = rng.randrange(len(lines))
    how = rng.randrange(4)
    if how == 0:
        del lines[at]
    elif how == 1:
        lines.insert(at, rng.choice(lines))
    elif how == 2:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    else:
        lines[at] = rng.choice(
            (b"", b'"', b"1,2", b"\xff\xfe", b"nan,inf,1e999,0x1,1_0", b"[" * 9000)
        )
    content[:] = b"\n".join(lines)


def edit_tables(rng, content):
    """Edit JSON, one table or one in each line."""
    lines = bytes(content).splitlines() if b"}\n{" in content else [bytes(content)]
    at = rng.randrange(len(lines))
    table = json.loads(lines[at])
    if isinstance(table, dict) and table and rng.random() < 0.95:
        edit_json(rng, table)
    else:
        table = rng.choice([[], 5, None, "text", [table], {}, {DEEP: DEEP}])
    lines[at] = deep_text(json.dumps(table)).encode()
    if rng.random() < 0.1:  # a name twice, and what is no JSON
        lines[at] = lines[at].replace(b"{", b'{"step": 1, "step": NaN, ', 1)
    content[:] = b"\n".join(lines)


def edit_npy(rng, content):
    """Edit the header of a .npy file, or of one in an archive, without changing its length."""
    import re

    fields = list(re.finditer(rb"'descr': '([^']*)'|'shape': (\([^)]*\))", content))
    if not fields:
        return
    found = rng.choice(fields)
    part = 1 if found[1] is not None else 2
    options = [b"|O", b"<f4", b">i8", b"|V8", b"|S9", b"<U2", b"|b1", b"<c8", b"<M8", b"O", b"<f16"]
    if part == 2:
        options = [b"(2**60,)", b"(-5,)", b"(1<<9,)", b"(9**9,)", b"()", b"(0,)", b"(99999999,)"]
        options += [
            b"(9999999999999999,)",
            b"('a',)",
            b"((5,),)",
            b"(True,)",
            b"(5, 5, 5)",
            b"(1e3,)",
        ]
    new, size = rng.choice(options), found.end(part) - found.start(part)
    end = content.index(b"\n", found.end())
    old = content[found.end(part) : end]
    both = (new + old).rstrip().ljust(size + len(old))[: size + len(old)]
    content[found.start(part) : end] = both


def edit_zip(rng, content):
    """Write an archive anew, with members that are compressed, doubled, or none of arrays."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError):
        return
    memory = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(memory, "w") as archive:
        warnings.simplefilter("ignore")
        for name, inner in members.items():
            inner = bytearray(inner)
            rng.choice([edit_npy, edit_npy, *ANY_BYTES])(rng, inner)
            how = rng.choice((zipfile.ZIP_STORED,) * 5 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
            archive.writestr(rng.choice((name, name, name, "x.npy", "../e.npy")), inner, how)
    content[:] = memory.getvalue()


def edit_pickle(rng, content):
    things = [
        {"vocab_size": rng.choice(STRANGE)},
        {"vocab_size": numpy.int64(5)},
        os.system,
        [1],
        {"vocab_size": 2**40, "itos": {1: "vocab_size"}},
    ]
    content[:] = pickle.dumps(rng.choice(things), rng.choice((0, 2, 4)))


def edit_safetensors(rng, content):
    length = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + length])
    edit_json(rng, table)
    text = deep_text(json.dumps(table)).encode()
    content[: 8 + length] = len(text).to_bytes(8, "little") + text


def edit_compressed(rng, content):
    """Pack something else the same way: zeros, deep brackets, one long line."""
    pack = gzip.compress if content[:2] == b"\x1f\x8b" else lzma.compress
    pack = bz2.compress if content[:3] == b"BZh" else pack
    inner = rng.choice(
        (b'{"text": "a"}', b"[" * 200_000, b"\0" * (1 << 23), b"", b'{"text": 5}', b"\xff" * 99)
    )
    content[:] = pack(inner) * rng.choice((1, 1, 2)) + rng.choice((b"", b"\0" * 512, b"x"))


def edit_hdf5(rng, path):
    """Put datasets of other kinds, links and claims under the names of good ones."""
    with h5py.File(path, "r+") as file:
        names = []
        file.visititems(lambda name, item: names.append(name))
        attributes = list(file.attrs)
        if attributes and rng.random() < 0.3:
            value = rng.choice([1, -1, 2**40, "text", [1, 2], 1.5, "x" * 60_000, b"bytes"])
            name = rng.choice(attributes)
            del file.attrs[name]
            if rng.random() < 0.8:
                file.attrs[name] = value
            return
        name = rng.choice(names)
        del file[name]
        rng.choice(HDF5_THINGS)(rng, file, name)


def _claim(rng, file, name):
    shape = rng.choice([(1 << 40,), (1 << 20, 1 << 20), (1 << 62,), (5, 1 << 35), (10**6,)])
    layout = rng.choice([{}, {"chunks": (16,) * len(shape)}, {"chunks": True}])
    if layout and rng.random() < 0.5:
        layout["compression"] = "gzip"
    try:
        made = file.create_dataset(name, shape, rng.choice(["f4", "<u2", "<i8"]), **layout)
        if layout and rng.random() < 0.5:
            made[tuple(0 for _ in shape)] = 1
    except (ValueError, OSError, OverflowError):
        file[name] = numpy.zeros(3)


def _other_type(rng, file, name):
    kinds = [
        h5py.string_dtype(),
        h5py.vlen_dtype("i4"),
        h5py.ref_dtype,
        h5py.regionref_dtype,
        numpy.dtype([("a", "i4"), ("t", h5py.string_dtype())]),
        numpy.dtype([("a", "i4", (3,)), ("b", "f8")]),
        h5py.enum_dtype({"A": 1, "B": 2}),
        numpy.dtype("V8"),
        numpy.dtype("S5"),
        numpy.dtype("c8"),
        numpy.dtype("f2"),
        numpy.dtype("?"),
        numpy.dtype(">i8"),
        h5py.opaque_dtype(numpy.dtype("<M8[s]")),
    ]
    file.create_dataset(name, (rng.choice((2, ROWS)),), rng.choice(kinds))


def _link(rng, file, name):
    links = [
        h5py.SoftLink("/nowhere"),
        h5py.SoftLink("/"),
        h5py.ExternalLink("/etc/passwd", "/x"),
        h5py.ExternalLink("t.h5", "x"),
    ]
    file[name] = rng.choice(links)


def _cycle(rng, file, name):
    above = file.require_group(f"{name}/a/b")
    above["back"] = file["/"]


def _deep(rng, file, name):
    file.create_group(name + "/d" * rng.choice((10, 70, 300)))["x"] = numpy.zeros((ROWS, 4))


def _external(rng, file, name):
    where = rng.choice(["/etc/passwd", "t.csv", "/dev/zero"])
    file.create_dataset(name, (ROWS,), "u1", external=[(where, 0, ROWS)])


def _virtual(rng, file, name):
    shape = rng.choice([(ROWS, 4), (1 << 40, 4), (ROWS, 1 << 30)])
    source = rng.choice(["/etc/passwd", "t.h5", "../t.h5", ".", "nobody.h5", "/dev/zero"])
    virtual = h5py.VirtualLayout(shape, "f4")
    virtual[:ROWS, :4] = h5py.VirtualSource(source, rng.choice(["x", name, "no"]), (ROWS, 4))
    file.create_virtual_dataset(name, virtual)


def _odd_shape(rng, file, name):
    shape = rng.choice([(), (0,), (0, 5), (ROWS, 0), (1,) * 20, (ROWS, 2, 2), (ROWS + 1,)])
    file[name] = numpy.zeros(shape, "i8")


def _null(rng, file, name):
    file[name] = h5py.Empty("f4")


HDF5_THINGS = [_claim, _claim, _other_type, _link, _cycle, _deep, _external, _virtual]
HDF5_THINGS += [_odd_shape, _null]

EDITS = {
    ".json": [edit_tables],
    ".jsonl": [edit_tables, edit_lines],
    ".toml": [edit_text, edit_text, edit_lines],
    ".csv": [edit_text, edit_lines],
    ".tsv": [edit_text, edit_lines],
    ".txt": [edit_lines],
    ".npy": [edit_npy],
    ".npz": [edit_npy, edit_zip],
    ".pkl": [edit_pickle],
    ".safetensors": [edit_safetensors],
    ".gz": [edit_compressed],
    ".bz2": [edit_compressed],
    ".xz": [edit_compressed],
    ".stacks": [edit_lines],
}


def damage(rng, path):
    """Damage one file in one or two ways; return what was done, in words."""
    if rng.random() < 0.08:
        name = rng.choice(list(NODES))
        NODES[name](path)
        return name
    if path.suffix == ".h5" and rng.random() < 0.4:
        edit_hdf5(rng, path)
        return "edit_hdf5"
    content = bytearray(path.read_bytes())
    edits = EDITS.get(path.suffix, [])
    done = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        if not content:
            break
        one = rng.choice(edits if edits and rng.random() < 0.6 else ANY_BYTES)
        try:
            one(rng, content)
        except (ValueError, RecursionError):  # what was damaged before is no JSON any more
            continue
        done.append(one.__name__)
    path.write_bytes(content)
    return " ".join(done)


# ---- what a reader says --------------------------------------------------------------------------


def outcome_of(read, folder, victim):
    """("read" or "refused" or "problem", about it); an index names files of the originals."""
    try:
        read(folder, victim)
    except (sk.ShardkitError, FileNotFoundError, PermissionError) as error:
        text = f"{error} {getattr(error, 'filename', '')}"
        if str(folder) not in text and str(folder.with_name("original")) not in text:
            return "problem", f"{type(error).__name__} names no file: {error}"
        if "more memory than there is" in text:
            return "problem", f"asked for memory: {error}"
        return "refused", ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        at = error.__traceback__
        while at.tb_next is not None:
            at = at.tb_next
        where = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        return "problem", f"{type(error).__name__} at {where}: {str(error)[:200]}"
    return "read", ""


def limit_memory():
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, used + MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def begin(name, number):
    """Say which file is read, and give it 5 s: the default of these signals ends the process."""
    print(name, number, flush=True)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)


class Trial:
    """One reader, and copies of its good files."""

    def __init__(self, folder, name):
        make, self._read = READERS[name]
        self.name, self._original, self._scratch = name, folder / "original", folder / "scratch"
        self._original.mkdir(parents=True)
        make(self._original)
        unread = UNREAD.get(name, ())
        files = [path.relative_to(self._original) for path in files_in(self._original)]
        self._victims = [path for path in files if path.name not in unread]

    def warm(self):
        """Read the good files: loads kernels and libraries."""
        for victim in self._victims:
            self._copy()
            found = outcome_of(self._read, self._scratch, self._scratch / victim)
            assert found == ("read", ""), (self.name, victim, found)

    def outcome(self, number):
        """("read" or "refused", "") or ("problem", what) of a damaged copy."""
        rng = random.Random(f"{self.name} {number}")
        victim = rng.choice(self._victims)
        self._copy()
        what = damage(rng, self._scratch / victim)
        begin(self.name, number)
        outcome, about = outcome_of(self._read, self._scratch, self._scratch / victim)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return outcome, about and f"{self.name} {number}: {victim} after {what}: {about}"

    def _copy(self):
        shutil.rmtree(self._scratch, ignore_errors=True)
        shutil.copytree(self._original, self._scratch, symlinks=True)


def main(folder, names, first, count):
    trials = [Trial(folder / str(number), name) for number, name in enumerate(names)]
    for trial in trials:
        trial.warm()
    limit_memory()
    outcomes, problems = {}, []
    for trial in trials:
        of_trial = outcomes.setdefault(trial.name, Counter())
        for number in range(first, first + count):
            outcome, about = trial.outcome(number)
            of_trial[outcome] += 1
            problems += [about] if about else []
    print(json.dumps({"outcomes": outcomes, "problems": problems}))


if __name__ == "__main__":
    assert threading.active_count() == 1
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4]))
