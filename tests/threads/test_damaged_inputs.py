"""An audit of all readers: no input that is damaged, incomplete or stale is read without a word.

Every reader of data x every damage that its format can show, at a start and when a run goes on;
then what only one format or folder has. Each is refused in one sentence that names the file.
"""

import json
import os
import shutil
import time

import h5py
import numpy
import pytest
from table_files import SUFFIXES, rows, write
from token_sources import FORMATS, documents, write_documents

import shardkit as sk
from shardkit import ShardkitError
from shardkit.testing.checkpoint import TransformersFolder, write_tensors
from shardkit.testing.cli import Given
from shardkit.testing.data import Preparation, prepare_tokens
from shardkit.testing.task import load_task
from shardkit.testing.train import (
    configuration_of,
    first_settings,
    resumed,
    stored_settings,
    train_run,
)

COMMON = {"run.steps": 2, "run.checkpoint_every": 1, "optimizer.warmup_steps": 1}
TABLE = {
    "run.task": "table",
    "batch.sequences": 8,
    "batch.micro_batch": 4,
    "model.hidden": [4],
    "run.validation_batches": 1,
}
LANGUAGE = {
    "model.width": 8,
    "model.layers": 1,
    "model.heads": 2,
    "model.sequence_length": 16,
    "sample.tokens": 0,
    "batch.sequences": 2,
    "batch.micro_batch": 2,
    "run.validation_batches": 1,
}


def trained(settings, **how):
    return sk.run_ranks(1, lambda backend: train_run(settings, backend, **how))


def start(folder, task, **given):
    own = TABLE if task == "table" else LANGUAGE
    given = {**COMMON, **own, "run.folder": str(folder / "run"), **given}
    trained(first_settings(configuration_of(load_task(task)), given))


def go_on(folder, **given):
    trained(resumed(stored_settings(folder / "run"), {"run.steps": 4, **given}), resume=True)


def refused(action, *names, doing=""):
    """The action is refused by an error that names one of these. doing: what a failure names."""
    try:
        action()
    except (ShardkitError, FileNotFoundError) as error:
        message = str(error)
    else:
        pytest.fail(f"{doing}: it was not refused")
    assert any(name in message for name in names), f"{doing}: {message}"
    assert "\n" not in message.partition("\nraised on rank")[0], message


# ---- damage that any file may have ---------------------------------------------------------------


def gone(path):
    path.unlink()


def empty(path):
    os.truncate(path, 0)


def cut(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


def without_end(path):
    os.truncate(path, path.stat().st_size - 3)


def of_zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def a_folder(path):
    path.unlink()
    path.mkdir()


ANY = [gone, empty, cut, without_end, of_zeros, a_folder]
# a text may end anywhere, and so may a last line that has all its cells; of numbers without a
# header, any even number of bytes is an array
CANNOT_BE_TOLD = {("nanogpt", of_zeros), ("text", cut), ("text", without_end), ("nanogpt", cut)}
CANNOT_BE_TOLD.add((".csv", without_end))


# ---- tables --------------------------------------------------------------------------------------


def table_of(suffix, folder):
    """(path, settings) of a good table."""
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path = folder / f"t{suffix}"
    write(path, rows())
    x, y = {".npy": ("array[:2]", "array[2]"), ".h5": ("a[:2]", "a[2]")}.get(suffix, ("a:b", "c"))
    return path, {"data.path": str(path), "data.features": [x], "data.target": [y]}


@pytest.mark.parametrize("damage", ANY, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_damaged_table_is_refused_at_the_start(suffix, damage, tmp_path):
    path, given = table_of(suffix, tmp_path)
    damage(path)
    if (suffix, damage) in CANNOT_BE_TOLD:
        return start(tmp_path, "table", **given)
    refused(lambda: start(tmp_path, "table", **given), path.name)
    assert not (tmp_path / "run/checkpoints").exists()


STALE = {
    "its first number": lambda values: change(values, 0),
    "a number in the middle": lambda values: change(values, len(values) // 2 + 3),
    "its last number": lambda values: change(values, -1),
    "a row more": lambda values: numpy.concatenate([values, values[-1:]]),
    "a row less": lambda values: values[:-1],
    "two rows swapped": lambda values: values[[1, 0, *range(2, len(values))]],
}


def change(values, row):
    values = values.copy()
    values[row, 1] += 0.5
    return values


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.thorough(but=1)
def test_a_table_that_changed_is_refused_when_a_run_goes_on(suffix, tmp_path):
    path, given = table_of(suffix, tmp_path)
    start(tmp_path, "table", **given)
    for how, damage in STALE.items():
        write(path, damage(rows()))
        refused(lambda: go_on(tmp_path), path.name, doing=how)
    write(path, rows())  # restored, with another time
    go_on(tmp_path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_table_that_changes_while_a_run_starts_is_refused(suffix, tmp_path, monkeypatch):
    path, given = table_of(suffix, tmp_path)
    task = load_task("table")
    prepare = task.prepare

    def changed(self, folder, resume):
        write(path, STALE["its last number"](rows()))
        prepare(self, folder, resume)

    monkeypatch.setattr(task, "prepare", changed)
    time.sleep(0.02)  # a change within one tick of the clock of a file system has the same time
    refused(lambda: start(tmp_path, "table", **given), path.name)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.thorough
def test_a_file_of_validation_rows_that_changed_is_refused_too(suffix, tmp_path):
    path, given = table_of(suffix, tmp_path)
    held = tmp_path / f"held{suffix}"
    write(held, rows()[::-1])
    start(tmp_path, "table", **given, **{"data.validation_path": str(held)})
    write(held, STALE["its last number"](rows()))
    refused(lambda: go_on(tmp_path), held.name)


# ---- language data -------------------------------------------------------------------------------


def language_of(name, folder, seed=0):
    """(files, settings) of good language data; the tokens are in the first file."""
    path = write_documents(folder / "files", name, documents(40, seed=seed))
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    if name == "megatron":
        files = [path.with_suffix(".bin"), path.with_suffix(".idx")]
    if name == "npz":
        files = [path.with_name("tokens.npz")]
    given = {"data.path": [str(path)]}
    if name == "text":
        given["data.path"] = [str(each) for each in files]
    return files, given | ({} if name in ("text", "tokens") else {"model.vocabulary_size": 256})


@pytest.mark.parametrize("damage", ANY, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_tokens_are_refused_at_the_start(name, damage, tmp_path):
    files, given = language_of(name, tmp_path)
    for number, path in enumerate(files if name == "megatron" else files[:1]):
        if (name, damage) in CANNOT_BE_TOLD:
            continue
        kept = path.read_bytes()
        damage(path)
        if name == "megatron" and damage is of_zeros and number == 0:
            path.write_bytes(kept)  # token 0, again and again, is what anybody may have written
            continue
        refused(lambda: start(tmp_path, "language", **given), *(each.name for each in files))
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(kept)


def changed_byte(path, at):
    content = bytearray(path.read_bytes())
    content[at] = 65 if content[at] != 65 else 66
    path.write_bytes(content)


TOKEN_DAMAGE = {
    "the last token": lambda path: changed_byte(path, -4 if path.suffix == ".bin" else -1),
    "a token in the middle": lambda path: changed_byte(path, path.stat().st_size // 2 // 4 * 4),
    "a token more": lambda path: path.write_bytes(path.read_bytes() + bytes([65, 0, 0, 0])),
    "cut": cut,
    "gone": gone,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.thorough(but=2)
def test_tokens_that_changed_are_refused_when_a_run_goes_on(name, tmp_path):
    files, given = language_of(name, tmp_path)
    start(tmp_path, "language", **given)
    path = files[-1] if name == "text" else files[0]
    kept = path.read_bytes()
    for how, damage in TOKEN_DAMAGE.items():
        damage(path)
        refused(lambda: go_on(tmp_path), path.name, doing=how)
        path.write_bytes(kept)
    go_on(tmp_path)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "text"])
@pytest.mark.thorough(but=3)
def test_tokens_that_are_there_twice_are_refused_unless_they_have_weights(name, tmp_path):
    """Of texts with the same content one is read."""
    files, given = language_of(name, tmp_path)
    ends = (".bin", ".idx") if name == "megatron" else (files[0].suffix,)
    for end in ends:
        shutil.copy(files[0].with_suffix(end), files[0].with_name("copy").with_suffix(end))
    first = given["data.path"][0]
    copy = str(files[0].with_name("copy").with_suffix(ends[0])) + first.partition(".npz")[2]
    if name == "nanogpt":
        given["data.token_dtype"] = "uint16"
    twice = {**given, "data.path": [first, copy]}
    refused(lambda: start(tmp_path, "language", **twice), "copy")
    start(tmp_path, "language", **twice, **{"data.weights": [1.0, 2.0]})


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_that_are_trained_on_are_not_held_out(suffix, tmp_path):
    path, given = table_of(suffix, tmp_path)
    shutil.copy(path, tmp_path / f"held{suffix}")
    given["data.validation_path"] = str(tmp_path / f"held{suffix}")
    refused(lambda: start(tmp_path, "table", **given), f"held{suffix}")


# ---- what one format has -------------------------------------------------------------------------


def npy_and_more(folder):
    with open(folder / "t.npy", "wb") as file:
        numpy.save(file, rows())
        numpy.save(file, rows())
    return folder / "t.npy"


def npz_of_two_lengths(folder):
    numpy.savez(folder / "t.npz", a=rows()[:, 0], b=rows()[:, 1], c=rows()[:-1, 2])
    return folder / "t.npz"


def chunks_unwritten(folder):
    with h5py.File(folder / "t.h5", "w") as file:
        made = file.create_dataset("a", (5000, 3), "f8", chunks=(100, 3))
        made[:4900] = rows()[:4900]
    return folder / "t.h5"


def never_written(folder):
    with h5py.File(folder / "t.h5", "w") as file:
        file.create_dataset("a", (5000, 3), "f8")
    return folder / "t.h5"


def raw_file_short(folder):
    rows()[:100].tofile(folder / "raw")
    with h5py.File(folder / "t.h5", "w") as file:
        file.create_dataset("a", (5000, 3), "f8", external=[("raw", 0, 5000 * 24)])
    return folder / "t.h5"


def source_gone(folder):
    layout = h5py.VirtualLayout((5000, 3), "f8")
    layout[:] = h5py.VirtualSource("source.h5", "a", (5000, 3))
    with h5py.File(folder / "t.h5", "w") as file:
        file.create_virtual_dataset("a", layout)
    return folder / "t.h5"


def csv(content):
    def make(folder):
        (folder / "t.csv").write_text(content)
        return folder / "t.csv"

    return make


ROW = "0.5,0.25,0.125\n"
ONE_FORMAT = {
    "an array behind the array": npy_and_more,
    "columns of two lengths": npz_of_two_lengths,
    "chunks that were never written": chunks_unwritten,
    "a dataset that was never written": never_written,
    "a raw file that is short": raw_file_short,
    "a virtual source that is gone": source_gone,
    "a ragged line": csv("a,b,c\n" + ROW * 9 + "0.5,0.25\n" + ROW),
    "a last line that is cut": csv("a,b,c\n" + ROW * 9 + "0.5,0.2"),
    "a cut number": csv("a,b,c\n" + ROW * 9 + "0.5,0.25,-"),
    "a line without cells": csv("a,b,c\n" + ROW * 9 + "\n" + ROW),
    "a target that is missing": csv("a,b,c\n" + ROW * 9 + "0.5,0.25,\n"),
    "two columns of one name": csv("a,b,b,c\n" + "0.5,0.25,0.125,1\n" * 9),
    "names that may be a row": csv("0,1,2\n" + "1,2,3\n" * 9),
    "a quote that does not end": csv("a,b,c\n" + ROW * 9 + '"0.5,0.25,0.125\n'),
    "UTF-16": lambda folder: (
        (folder / "t.csv").write_text(("a,b,c\n" + ROW * 9), encoding="utf-16"),
        folder / "t.csv",
    )[1],
    "lines of another delimiter": csv("a,b,c\n" + ROW * 9 + "0.5;0.25;0.125\n"),
}


@pytest.mark.parametrize("case", ONE_FORMAT)
def test_what_a_format_may_lack_is_refused(case, tmp_path):
    path = ONE_FORMAT[case](tmp_path)
    x, y = {".npy": ("array[:2]", "array[2]"), ".h5": ("a[:2]", "a[2]")}.get(
        path.suffix, ("a:b", "c")
    )
    given = {"data.path": str(path), "data.features": [x], "data.target": [y]}
    refused(lambda: start(tmp_path, "table", **given), path.name)


def test_the_index_of_pandas_is_no_feature_unsaid(tmp_path):
    (tmp_path / "t.csv").write_text(",a,c\n" + "".join(f"{i},{i / 7},{i / 3}\n" for i in range(50)))
    given = {"data.path": str(tmp_path / "t.csv"), "data.target": ["c"]}
    refused(lambda: start(tmp_path, "table", **given), "t.csv")
    start(tmp_path, "table", **given, **{"data.features": ["a"]})


# ---- classes -------------------------------------------------------------------------------------

LABELS = {
    "ids": (range(5000, 5061), "classes in y of .. training rows"),
    "a fraction": ([0, 1] * 30 + [0.5], "line 62, column y: 0.5"),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_that_are_no_classes_are_refused(case, tmp_path):
    labels, words = LABELS[case]
    lines = [f"{i / 7},{label}" for i, label in enumerate(labels)]
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *lines]) + "\n")
    given = {"data.path": str(tmp_path / "t.csv"), "data.target": ["y"], "data.kind": "multiclass"}
    with pytest.raises(ShardkitError, match=words):
        start(tmp_path, "table", **given)


# ---- the folder of a run -------------------------------------------------------------------------


def of_another_run(folder, name):
    """Take a file of a run on other rows."""
    other = folder / "other"
    other.mkdir()
    path, given = table_of(".csv", other)
    write(path, rows() * 2)
    start(other, "table", **given)
    shutil.copy(other / "run/data" / name, folder / "run/data" / name)


def edited(path, text, other):
    content = path.read_text()
    assert text in content
    path.write_text(content.replace(text, other, 1))


def all_steps(folder, damage):
    for step in (folder / "run/checkpoints").glob("step-*"):
        damage(step)


RUN_DAMAGE = {
    "no settings": lambda f: gone(f / "run/configuration.json"),
    "cut settings": lambda f: cut(f / "run/configuration.json"),
    "cut scaling": lambda f: cut(f / "run/data/table.json"),
    "a scaling of other rows": lambda f: of_another_run(f, "table.json"),
    "a list of contents that is cut": lambda f: cut(f / "run/data/contents.json"),
    "contents of another file": lambda f: (f / "run/data/contents.json").write_text(
        json.dumps({str((f / "t.csv").resolve()): [None, "0" * 32]})
    ),
    "no checkpoints": lambda f: shutil.rmtree(f / "run/checkpoints"),
    "manifests that are cut": lambda f: all_steps(f, lambda step: cut(step / "manifest.json")),
    "no manifests": lambda f: all_steps(f, lambda step: gone(step / "manifest.json")),
    "values that are cut": lambda f: all_steps(f, lambda step: cut(step / "rank-00000.h5")),
    "values of zeros": lambda f: all_steps(f, lambda step: of_zeros(step / "rank-00000.h5")),
}


@pytest.mark.parametrize("case", RUN_DAMAGE)
@pytest.mark.thorough(but=3)
def test_a_run_whose_folder_lacks_something_does_not_go_on(case, tmp_path):
    _, given = table_of(".csv", tmp_path)
    start(tmp_path, "table", **given)
    RUN_DAMAGE[case](tmp_path)
    refused(lambda: go_on(tmp_path), str(tmp_path / "run"), "t.csv")


@pytest.mark.thorough
def test_a_scaling_that_is_gone_is_fitted_again_and_compared(tmp_path):
    path, given = table_of(".csv", tmp_path)
    start(tmp_path, "table", **given)
    described = (tmp_path / "run/data/table.json").read_bytes()
    gone(tmp_path / "run/data/table.json")
    go_on(tmp_path)
    assert (tmp_path / "run/data/table.json").read_bytes() == described
    gone(tmp_path / "run/data/table.json")
    write(path, rows() * 2)
    refused(lambda: go_on(tmp_path), str(tmp_path / "run"))


INDEX_DAMAGE = {
    "gone": gone,
    "cut": cut,
    "another file": lambda path: edited(path, "train.bin", "other.bin"),
    "another mark": lambda path: path.write_text(
        json.dumps(_with_mark(json.loads(path.read_text())))
    ),
    "of an earlier version": lambda path: path.write_text(
        json.dumps(_without_stamps(json.loads(path.read_text())))
    ),
}


def _with_mark(table):
    table["training"][0]["segments"][0][4:] = ["0" * 32, [None]]
    return table


def _without_stamps(table):
    table["training"][0]["segments"][0].pop()
    return table


@pytest.mark.parametrize("case", INDEX_DAMAGE)
def test_a_run_on_tokens_whose_index_lacks_something_does_not_go_on(case, tmp_path):
    _, given = language_of("nanogpt", tmp_path)
    start(tmp_path, "language", **given)
    INDEX_DAMAGE[case](tmp_path / "run/data/index.json")
    refused(lambda: go_on(tmp_path), "index.json", "other.bin", "train.bin")


# ---- settings ------------------------------------------------------------------------------------

TOML = {
    "gone": None,
    "cut": "[run]\nsteps = ",
    "a name twice": "[run]\nsteps = 1\nsteps = 2\n",
    "a section twice": "[run]\nsteps = 1\n[run]\nfolder = 'a'\n",
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("case", TOML)
def test_settings_that_are_no_toml_are_refused(case, tmp_path):
    content = TOML[case]
    if content is not None:
        (tmp_path / "s.toml").write_bytes(content if type(content) is bytes else content.encode())
    refused(lambda: Given.read(str(tmp_path / "s.toml"), []), "s.toml")


# ---- folders of transformers ---------------------------------------------------------------------

PARTS = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}


def sharded(folder, parts=PARTS, named=None, weight_map=None):
    """A folder whose tensors, [2] each, are in these files; the index names them."""
    folder.mkdir(exist_ok=True)
    for file, names in parts.items():
        arrays = (numpy.full(2, ord(name), "float32") for name in names)
        write_tensors(folder / file, dict.fromkeys(names, (2,)), "float32", arrays)
    if weight_map is None:
        weight_map = {name: file for file, names in parts.items() for name in names}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


FIRST, SECOND = PARTS
SHARDS = {
    "a part that is gone": (lambda f: gone(sharded(f) / SECOND), SECOND),
    "a part that is cut": (lambda f: without_end(sharded(f) / SECOND), SECOND),
    "a part that the index leaves out": (
        lambda f: sharded(f, weight_map={"a": FIRST, "b": FIRST}),
        SECOND,
    ),
    "a tensor in two parts": (lambda f: sharded(f, {FIRST: ["a", "b"], SECOND: ["b", "c"]}), "b"),
    "a tensor that is in no part": (
        lambda f: sharded(f, weight_map={"a": FIRST, "c": SECOND, "d": SECOND}),
        "d",
    ),
    "an index that is cut": (lambda f: cut(sharded(f) / "model.safetensors.index.json"), "index"),
    "no index": (lambda f: gone(sharded(f) / "model.safetensors.index.json"), "holds neither"),
    "a stale index that does not hold": (
        lambda f: write_tensors(
            sharded(f, {FIRST: ["a"]}, weight_map={"a": FIRST, "z": FIRST}) / "model.safetensors",
            {"a": (2,)},
            "float32",
            [numpy.zeros(2, "float32")],
        ),
        "model-00001",
    ),
}


@pytest.mark.parametrize("case", SHARDS)
def test_tensors_in_several_files_are_all_there_once(case, tmp_path):
    make, name = SHARDS[case]
    make(tmp_path / "model")
    refused(lambda: TransformersFolder(tmp_path / "model"), name)


# ---- token files that are made -------------------------------------------------------------------


def test_texts_that_change_while_they_are_prepared_are_refused(tmp_path, monkeypatch):
    from shardkit.testing.data import job

    (tmp_path / "a.txt").write_text("some text\n" * 100)
    assemble = job.assemble

    def changed(*arguments, **how):
        (tmp_path / "a.txt").write_text("other text\n" * 100)
        return assemble(*arguments, **how)

    monkeypatch.setattr(job, "assemble", changed)
    made = Preparation((str(tmp_path / "a.txt"),), tmp_path / "tokens.h5", "bytes")
    refused(lambda: sk.run_ranks(1, lambda backend: prepare_tokens(backend, made)), "a.txt")
    assert not (tmp_path / "tokens.h5").exists()


OTHERS = {
    "another text": lambda f: (f / "texts/b.txt").write_text("other text\n" * 100),
    "a text more": lambda f: (f / "texts/c.txt").write_text("more"),
    "a text less": lambda f: gone(f / "texts/b.txt"),
    "texts in another order": lambda f: (f / "texts/b.txt").rename(f / "texts/0.txt"),
    "a cut output": lambda f: cut(f / "tokens.h5"),
}


@pytest.mark.parametrize("how", OTHERS)
def test_tokens_are_used_again_for_the_same_texts_only(how, tmp_path):
    (tmp_path / "texts").mkdir()
    for name in "ab":
        (tmp_path / f"texts/{name}.txt").write_text(f"some text of {name}\n" * 100)
    made = Preparation((str(tmp_path / "texts"),), tmp_path / "tokens.h5", "bytes", reuses=True)

    def prepare():
        return sk.run_ranks(2, lambda backend: prepare_tokens(backend, made))[0]

    first = prepare()
    content = (tmp_path / "tokens.h5").read_bytes()
    os.utime(tmp_path / "texts/a.txt")  # touched, and the same
    assert prepare() == first and (tmp_path / "tokens.h5").read_bytes() == content
    OTHERS[how](tmp_path)
    refused(prepare, "tokens.h5")
