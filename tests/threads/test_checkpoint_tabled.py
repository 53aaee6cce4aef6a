"""Checkpoints of many ranks, whose files describe their own boxes; here made by a few."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from builders import sha256, token_batch, train
from checkpoints import edit_manifest, flip_bit, owned_part, rows, save_boxes

import shardkit as sk
from shardkit.testing.checkpoint import (
    Checkpoint,
    checksum,
    compare,
    describe,
    encoded,
    manifest,
    read_manifest,
    saving,
)
from shardkit.testing.layout import Box

SHAPE = (37, 21)
A = "model/a"


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """Every number of ranks counts as many."""
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", 0)


def values(shape=SHAPE):
    return numpy.random.default_rng(0).random(shape, "float32")


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of three ranks."""
    tensors = {A: (values(), rows(SHAPE, 3)), "model/b": (values((30,)), rows((30,), 3))}
    return save_boxes(tmp_path / "store", tensors)


def run(strategy, num_ranks, steps, *, load=None, save=None, start=0):
    def on_rank(backend):
        model, _ = train(strategy, backend, 0, samples=12, micro_batch=3)
        if load:
            assert model.load_model(load)["step"] == start
        for step in range(start, start + steps):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 12)))
        if save:
            model.save_model_async(save).wait() if strategy == "FSDP" else model.save_model(save)
        return sha256(model.gather_full_parameters())

    (bits,) = set(sk.run_ranks(num_ranks, on_rank))
    return bits


@pytest.mark.parametrize(
    "saved, loaded",
    [
        (("FSDP", 2), ("FSDP", 2)),
        (("FSDP", 4), ("DDP", 1)),
        (("DDP", 1), ("FSDP", 2)),
        (("ZeRO-1", 2), ("FSDP", 4)),
    ],
)
@pytest.mark.thorough(but=2)
def test_a_run_goes_on_under_another_strategy_and_number_of_ranks(saved, loaded, tmp_path):
    run(*saved, 2, save=tmp_path)
    assert run(*loaded, 1, load=tmp_path, start=2) == run("DDP", 1, 3)


def test_it_holds_what_a_listed_one_holds(tmp_path, monkeypatch):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        return model.save_model(tmp_path / str(saving.MOST_LISTED_RANKS))

    tabled = sk.run_ranks(3, on_rank)[0]
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", 64)
    listed = sk.run_ranks(3, on_rank)[0]
    assert (read_manifest_of(tabled)["version"], read_manifest_of(listed)["version"]) == (4, 3)
    assert compare(Checkpoint(tabled), Checkpoint(listed)).is_equal
    pages = [describe(path, verify=True).text.split("\n")[1:-1] for path in (tabled, listed)]
    lines = [[line.split()[:4] for line in page if line] for page in pages]
    assert lines[0] == lines[1]


def read_manifest_of(path):
    return json.loads((Path(path) / "manifest.json").read_text())


def test_a_part_is_read_from_the_files_that_hold_it(folder):
    checkpoint = Checkpoint(folder)
    for other in ("rank-00000.h5", "rank-00002.h5"):
        content = bytearray((folder / other).read_bytes())
        (folder / other).write_bytes(bytes(len(content)))
    assert (checkpoint.read_box(A, Box((13, 2), (5, 9))) == values()[13:18, 2:11]).all()
    with pytest.raises(sk.CheckpointError, match=r"rank-0000[02].h5 is damaged: its table"):
        checkpoint.read_whole(A)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_boxes_of_any_form_come_back(tmp_path, num_ranks):
    """Cut by rows, by columns, in corners; a scalar; ranks that own nothing."""
    whole = values((6, 10))
    corners = [Box((0, 0), (2, 10)), Box((2, 0), (4, 3)), Box((2, 3), (4, 7))]
    own = [[box for i, box in enumerate(corners) if i % num_ranks == r] for r in range(num_ranks)]
    scalar = [[Box((), ())] if rank == num_ranks - 1 else [] for rank in range(num_ranks)]
    tensors = {A: (whole, own), "model/scalar": (numpy.array(3.5, "float32"), scalar)}
    checkpoint = Checkpoint(save_boxes(tmp_path, tensors))
    checkpoint.verify()
    assert (checkpoint.read_whole(A) == whole).all()
    assert checkpoint.read_whole("model/scalar") == 3.5

    def on_rank(backend):
        array = numpy.zeros_like(whole)
        box = rows(whole.shape, backend.world_size)[backend.rank][0]
        tensor, piece, into = owned_part(A, array, box)
        opened = Checkpoint.opened_together(checkpoint.folder, backend)
        opened.read_verified([(tensor, piece, into)], backend)
        return (into.reshape(box.shape) == whole[box.slices()]).all()

    assert all(sk.run_ranks(2, on_rank)) and all(sk.run_ranks(3, on_rank))


@pytest.mark.parametrize("name", ["a b", "a\tb", "a\nb", "\u00e9"])
def test_names_may_have_any_characters(tmp_path, name):
    tensor = f"model/{name}"
    checkpoint = Checkpoint(save_boxes(tmp_path, {tensor: (values(), rows(SHAPE, 2))}))
    assert (checkpoint.read_whole(tensor) == values()).all()


def test_ranks_may_own_the_rows_in_any_order(tmp_path):
    own = [rows(SHAPE, 4)[part] for part in (2, 3, 0, 1)]
    checkpoint = Checkpoint(save_boxes(tmp_path, {A: (values(), own)}))
    assert (checkpoint.read_whole(A) == values()).all()


@pytest.mark.parametrize(
    "parts, words",
    [
        ([[Box.whole(SHAPE)], [Box((0, 0), (1, 1))]], "model/a do not make it whole: .*2 times"),
        ([[Box((0, 0), (30, 21))], [Box((31, 0), (6, 21))]], "parts of model/a do not make"),
        ([[Box((0, 0), (30, 21))], [Box((30, 0), (7, 20)), Box((0, 0), (1, 7))]], "model/a do not"),
    ],
)
def test_what_does_not_tile_a_tensor_is_found_before_anything_gets_its_name(tmp_path, parts, words):
    with pytest.raises(sk.CheckpointError, match=words):
        save_boxes(tmp_path, {A: (values(), parts)})
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("step")]


def test_a_manifest_that_no_reader_would_take_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "MOST_BYTES", 500)
    with pytest.raises(sk.CheckpointError, match="readers take 500; save from fewer ranks"):
        save_boxes(tmp_path, {A: (values(), rows(SHAPE, 2))})


@pytest.mark.parametrize("most_bytes, version", [(1200, 4), (1 << 28, 3)])
def test_few_ranks_describe_their_boxes_too_where_a_list_would_be_too_long(
    most_bytes, version, tmp_path, monkeypatch
):
    """Of one rank the list is too long, which only that rank sees."""
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", 64)
    monkeypatch.setattr(saving, "MOST_BYTES", most_bytes)
    one, *others = [Box((row, 0), (1, SHAPE[1])) for row in range(SHAPE[0])]
    folder = save_boxes(tmp_path, {A: (values(), [[one], others])})
    assert read_manifest_of(folder)["version"] == version
    assert (Checkpoint(folder).read_whole(A) == values()).all()


# ---- damage --------------------------------------------------------------------------------------


def look(folder):
    """Everything that reads."""
    checkpoint = Checkpoint(folder)
    checkpoint.verify()
    assert (checkpoint.read_whole(A) == values()).all()


def table_at(folder, file="rank-00001.h5"):
    return read_manifest(folder)["files"][file]["table"]


DAMAGE = {
    "its table": lambda f: flip_bit(f / "rank-00001.h5", table_at(f)[0] + 40),
    "the values": lambda f: flip_bit(f / "rank-00001.h5", table_at(f)[0] - 8),
    "the head": lambda f: flip_bit(f / "rank-00001.h5", 0),
    "another rank's table": lambda f: swap_tables(f),
}


def swap_tables(folder):
    at, size, *_ = table_at(folder, "rank-00000.h5")
    content = bytearray((folder / "rank-00001.h5").read_bytes())
    other, own, *_ = table_at(folder)
    size = min(size, own)
    content[other : other + size] = (folder / "rank-00000.h5").read_bytes()[at : at + size]
    (folder / "rank-00001.h5").write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_found_on_all_ranks(folder, damage):
    DAMAGE[damage](folder)
    with pytest.raises(sk.CheckpointError, match=r"rank-00001.h5 is damaged"):
        look(folder)

    def on_rank(backend):
        opened = Checkpoint.opened_together(folder, backend)
        box = rows(SHAPE, 2)[backend.rank][0]
        owned = [owned_part(A, numpy.zeros(SHAPE, "float32"), box)]
        with pytest.raises(sk.CheckpointError, match=r"rank-00001.h5 is damaged"):
            opened.read_verified(owned, backend)
        return True

    assert sk.run_ranks(2, on_rank) == [True, True]


FORGERIES = {
    "a table behind the end": lambda m: record(m)["table"].__setitem__(0, 1 << 40),
    "a table of petabytes": lambda m: record(m)["table"].__setitem__(1, 1 << 50),
    "segments that are not there": lambda m: record(m)["table"].__setitem__(2, 1 << 40),
    "more segments than a table has checksums": lambda m: record(m)["table"].__setitem__(2, 99),
    "more files than there are": lambda m: m["parts"][0].update(files=[[0, 0, 1 << 24]]),
    "no table": lambda m: record(m).pop("table"),
    "a table that is text": lambda m: record(m).update(table="abcd"),
    "no parts": lambda m: m.update(parts=[]),
    "parts of no form": lambda m: m.update(parts=[{"files": 3}]),
    "a part of petabytes": lambda m: m["parts"][0].update(sizes=[[1, 0, 1 << 60]]),
    "files that are not there": lambda m: m["parts"][0].update(files=[[0, 9, 3]]),
    "a tensor without a number": lambda m: m["tensors"][A].update(parts=True),
    "a first file below 0": lambda m: m["tensors"][A].update(first=-1),
    "another shape": lambda m: m["tensors"][A].update(shape=[37, 22]),
    "a shape of petabytes": lambda m: m["tensors"][A].update(shape=[1 << 50, 21]),
    "another dtype": lambda m: m["tensors"][A].update(dtype="float64"),
    "a part that holds less": lambda m: m["parts"][0].update(sizes=[[1, 0, 3]]),
    "the version of lists": lambda m: m.update(version=3),
    "a later version": lambda m: m.update(version=5),
}


def record(manifest):
    return manifest["files"]["rank-00001.h5"]


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest_is_refused(folder, forgery):
    edit_manifest(folder, FORGERIES[forgery])
    with pytest.raises(sk.CheckpointError):
        look(folder)


def test_a_forged_manifest_takes_no_memory(folder):
    """As many numbers as a run may say, in many entries that no tensor refers to."""
    runs = {name: [[0, 0, 1 << 24]] for name in ("files", "starts", "sizes")}
    edit_manifest(folder, lambda m: m["parts"].extend([runs] * 1000))
    with pytest.raises(sk.CheckpointError, match="parts have"):
        Checkpoint(folder)


TABLES = {
    "a box elsewhere": lambda box: replace(box, box=Box((14, 0), box.box.shape)),
    "a box far away": lambda box: replace(box, box=Box((1 << 60, 0), box.box.shape)),
    "another shape": lambda box: replace(box, global_shape=(37, 22)),
    "another tensor": lambda box: replace(box, tensor="model/b"),
    "another dtype": lambda box: replace(box, dtype="int32"),
}


@pytest.mark.parametrize("forgery", TABLES)
def test_a_forged_table_whose_checksum_holds_is_refused(folder, forgery):
    name = "rank-00001.h5"
    at, _, segments, _ = table_at(folder)
    path = folder / name
    boxes = Checkpoint(folder)._stored.boxes_of(name)
    content = encoded([TABLES[forgery](box) if box.tensor == A else box for box in boxes])
    file = bytearray(path.read_bytes())
    file[at : at + len(content)] = content
    path.write_bytes(file)
    place = [at, len(content), segments, checksum(content)]
    edit_manifest(folder, lambda manifest: record(manifest).update(table=place))
    with pytest.raises(sk.CheckpointError):
        Checkpoint(folder).read_whole(A)
    with pytest.raises(sk.CheckpointError):
        describe(folder, verify=True)
    array = numpy.full(SHAPE, 7.0, "float32")

    def on_rank(backend):
        box = rows(SHAPE, 2)[backend.rank][0]
        tensor, piece, into = owned_part(A, array, box)
        with pytest.raises(sk.CheckpointError):
            Checkpoint.opened_together(folder, backend).read_verified(
                [(tensor, piece, into)], backend, expendable=False
            )
        return bool((into == 7.0).all())

    assert sk.run_ranks(2, on_rank) == [True, True], "filled before all was looked at"


def test_a_random_edit_is_refused_or_changes_no_value(folder):
    rng, text = random.Random(0), (folder / "manifest.json").read_text()
    for _ in range(60):
        (folder / "manifest.json").write_text(text)
        edit_manifest(folder, lambda manifest: edited(rng, manifest))
        try:
            look(folder)
        except sk.CheckpointError:
            continue


def edited(rng, manifest):
    """Change one number or list of parts, of a tensor or of a table."""
    places = [manifest["tensors"][A], rng.choice(manifest["parts"]), record(manifest)]
    value = rng.choice(places)
    while True:
        keys = [*value] if isinstance(value, dict) else [*range(len(value))]
        key = rng.choice(keys)
        if not isinstance(value[key], (dict, list)) or not value[key] or rng.random() < 0.2:
            break
        value = value[key]
    value[key] = rng.choice(
        [0, 1, -1, 3, 1 << 40, 1 << 70, True, 0.5, None, "x", [], [[0, 1, 1]], {}]
    )
