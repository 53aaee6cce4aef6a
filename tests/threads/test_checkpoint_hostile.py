"""What somebody else may have put into a checkpoint or an image ends in CheckpointError, before
memory is taken for it.
"""

import json
import os
import pickle
import tracemalloc
import zlib
from pathlib import Path

import numpy
import pytest
from builders import train
from checkpoints import described, edit_manifest, rows, save_boxes, seal

import shardkit as sk
from shardkit.testing.checkpoint import Checkpoint, find_model, gpt_of, image_of, read_image

SHAPE = (40, 30)
A = "model/a"
MOST_BYTES = 2 << 20  # the window of one reader, and some


@pytest.fixture
def folder(tmp_path):
    """A valid checkpoint of two ranks."""
    values = numpy.arange(1200, dtype="float32").reshape(SHAPE)
    return save_boxes(
        tmp_path / "store", {A: (values, rows(SHAPE, 2)), "model/b": (values[0], rows((30,), 2))}
    )


def refused(work, words):
    """The work ends in CheckpointError with these words, and takes next to no memory."""
    tracemalloc.start()
    try:
        with pytest.raises(sk.CheckpointError, match=words):
            work()
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def look(folder):
    """Everything that reads."""
    checkpoint = Checkpoint(folder)
    checkpoint.verify()
    checkpoint.read_whole(A)


def entry(manifest):
    return manifest["tensors"][A]


def box(manifest, number=0):
    return entry(manifest)["boxes"][number]


def rename_file(manifest, name):
    manifest["files"][name] = manifest["files"].pop("rank-00000.h5")
    for each in manifest["tensors"].values():
        for stored in each["boxes"]:
            stored[0] = name if stored[0] == "rank-00000.h5" else stored[0]


FORGERIES = {
    "a shape of petabytes": (
        lambda m: entry(m).update(shape=[2**50, 2**10]),
        "do not make it whole",
    ),
    "a box of petabytes": (
        lambda m: (entry(m).update(shape=[2**50, 30]), box(m, 1)[3].__setitem__(0, 2**50 - 20)),
        "overlaps",
    ),
    "as many dims as fit": (lambda m: entry(m).update(shape=[1] * 5000), "no shape"),
    "a negative size": (lambda m: box(m)[3].__setitem__(0, -20), "no shape or offset"),
    "a negative offset": (lambda m: box(m)[2].__setitem__(0, -1), "no shape or offset"),
    "a size that is a float": (lambda m: box(m)[3].__setitem__(0, 20.0), "no shape or offset"),
    "a size that is true": (lambda m: box(m)[3].__setitem__(0, True), "no shape or offset"),
    "a size beyond 64 bits": (
        lambda m: entry(m)["shape"].__setitem__(0, 2**70),
        "no shape or offset",
    ),
    "a shape that is text": (lambda m: entry(m).update(shape="40"), "no shape or offset"),
    "boxes that overlap": (
        lambda m: box(m, 1)[2].__setitem__(0, 19),
        "covered 2 times|do not make it whole",
    ),
    "a box outside the tensor": (
        lambda m: box(m, 1)[2].__setitem__(0, 30),
        "is not inside the tensor",
    ),
    "a lost box": (lambda m: entry(m)["boxes"].pop(), "do not make it whole"),
    "no boxes": (lambda m: entry(m).update(boxes=[]), "no boxes"),
    "bytes that two boxes share": (
        lambda m: m["tensors"]["model/b"]["boxes"][0].__setitem__(4, box(m)[4]),
        "overlaps",
    ),
    "a box beyond the end of its file": (
        lambda m: box(m)[4:].__setitem__(0, 0) or box(m).__setitem__(4, 10**9),
        "overlaps",
    ),
    "a place that is negative": (lambda m: box(m).__setitem__(4, -4096), "not where a box begins"),
    "a place that is not a number": (
        lambda m: box(m).__setitem__(4, float("nan")),
        "not where a box begins",
    ),
    "too few checksums": (lambda m: box(m)[5].clear(), "0 checksums"),
    "a checksum of other letters": (
        lambda m: box(m)[5].__setitem__(0, "0x123456"),
        "not where a box begins",
    ),
    "a checksum of an older version": (
        lambda m: box(m)[5].__setitem__(0, "01234567"),
        "checksums of 16 digits",
    ),
    "a version of before": (lambda m: m.update(version=2), "no release wrote an older version"),
    "Python objects": (lambda m: entry(m).update(dtype="object"), "dtype 'object'"),
    "a structured dtype": (lambda m: entry(m).update(dtype="f4,O"), "dtype 'f4,O'"),
    "a dtype that is a list": (lambda m: entry(m).update(dtype=["f4"]), "damaged"),
    "another size of segments": (lambda m: m.update(segment_bytes=1), "segment_bytes"),
    "a file above the folder": (
        lambda m: rename_file(m, "../rank-00000.h5"),
        "not the name of a file",
    ),
    "a file at the root": (lambda m: rename_file(m, "/etc/passwd"), "not the name of a file"),
    "a hidden file": (lambda m: rename_file(m, ".rank"), "not the name of a file"),
    "a file in a folder": (lambda m: rename_file(m, "sub/rank"), "not the name of a file"),
    "the manifest itself": (lambda m: rename_file(m, "manifest.json"), "not the name of a file"),
    "a file that is not listed": (
        lambda m: box(m).__setitem__(0, "other.h5"),
        "not among the files",
    ),
    "a file of another size": (
        lambda m: m["files"]["rank-00000.h5"].update(bytes=10**15),
        "the manifest says",
    ),
    "a file of negative size": (
        lambda m: m["files"]["rank-00000.h5"].update(bytes=-1),
        "the record of",
    ),
    "files that are a list": (lambda m: m.update(files=[]), "damaged"),
    "tensors that are a number": (lambda m: m.update(tensors=3), "damaged"),
    "a step of text": (lambda m: m.update(step="1"), "step = '1'"),
    "a negative step": (lambda m: m.update(step=-1), "step = -1"),
    "a loss that is not a number": (lambda m: m.update(last_loss=float("nan")), "last_loss"),
    "features that are text": (lambda m: m.update(active_features=["a"]), "active_features"),
    "a model without a class": (lambda m: m.update(model={"configuration": {}}), "model"),
    "an optimizer that is a list": (lambda m: m.update(optimizer=[]), "optimizer"),
    "state that is spared by text": (
        lambda m: m.update(optimizer={**m["optimizer"], "spared": {"first_moment": "a"}}),
        "optimizer",
    ),
    "a version to come": (lambda m: m.update(version=5), "reads versions 3 and 4: use a newer"),
    "tables that are not there": (lambda m: m.update(version=4), "damaged"),
    "a version that is a list": (lambda m: m.update(version=[1]), r"format version \[1\]"),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_manifest_is_refused(case, folder):
    edit, words = FORGERIES[case]
    edit_manifest(folder, edit)
    refused(lambda: look(folder), words)


TEXTS = {
    "brackets without end": ("[" * 200_000, "damaged"),
    "objects without end": ('{"a":' * 200_000, "damaged"),
    "a number of a million digits": (
        '{"crc32": "00000000", "version": ' + "9" * 1_000_000 + "}",
        "damaged",
    ),
    "no object": ("[1, 2]", "no JSON object"),
    "no text": (b"\xff\xfe\x00", "damaged"),
    "nothing": ("", "damaged"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_json_that_is_none_is_refused(case, folder):
    text, words = TEXTS[case]
    (folder / "manifest.json").write_bytes(text if isinstance(text, bytes) else seal(text).encode())
    with pytest.raises(sk.CheckpointError, match=words):
        look(folder)


def test_a_manifest_of_gigabytes_is_not_read(folder):
    os.truncate(folder / "manifest.json", 3 << 30)
    refused(lambda: look(folder), "wanted 268,435,456 at most")


@pytest.mark.parametrize("name", ["rank-00001.h5", "index.h5", "manifest.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_files_must_be_ordinary_files_of_the_folder(name, kind, folder):
    """A pipe would block a reader for ever, and a link might lead anywhere."""
    path = folder / name
    moved = path.rename(folder.parent / "moved")
    {"link": lambda: path.symlink_to(moved), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[
        kind
    ]()
    refused(lambda: look(folder), "is a link|not an ordinary file|cannot be read")


def test_nothing_is_unpickled(folder, monkeypatch):
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("something was unpickled"))
    monkeypatch.setattr(pickle, "load", lambda *_: pytest.fail("something was unpickled"))
    look(folder)
    read_image(image_of({A: numpy.zeros(SHAPE, "float32")}, described()))


def test_a_model_is_unchanged_by_a_checkpoint_that_is_forged(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        folder = model.save_model(tmp_path)
        before = model.gather_full_parameters()
        if backend.rank == 0:
            edit_manifest(
                Path(folder), lambda m: m["tensors"]["model/head.norm.weight"].update(shape=[2**60])
            )
        backend.barrier()
        with pytest.raises(sk.CheckpointError, match="head.norm.weight"):
            model.load_model(tmp_path)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, on_rank)


@pytest.mark.parametrize("size", [10**9, -1, "many", None])
def test_a_description_of_a_model_that_is_not_stored_is_refused_before_it_is_made(size, tmp_path):
    def on_rank(backend):
        return train("FSDP", backend, 1)[0].save_model(tmp_path)

    folder = Path(sk.run_ranks(1, on_rank)[0])
    edit_manifest(folder, lambda m: m["model"]["configuration"].update(layers=size))
    refused(lambda: gpt_of(find_model(tmp_path)[0], "generates text"), "layers|describes")


# ---- images --------------------------------------------------------------------------------------


def forged_image(edit):
    image = image_of({A: numpy.ones(SHAPE, "float32")}, described())
    end = image.index(b"\0")
    table = json.loads(image[:end])
    edit(table)
    del table["crc32"]
    text = json.dumps({"crc32": "00000000", **table}).encode()
    text = text.ljust(end, b" ")
    body = text + image[len(text) :]
    return body[:11] + f"{zlib.crc32(body):08x}".encode() + body[19:]


IMAGES = {
    "a tensor of petabytes": (lambda t: t["tensors"][A].update(shape=[2**50]), "not inside"),
    "a tensor behind the end": (lambda t: t["tensors"][A].update(at=10**9), "not inside"),
    "a tensor before the beginning": (lambda t: t["tensors"][A].update(at=-8), "not inside"),
    "a place that is true": (lambda t: t["tensors"][A].update(at=True), "not inside"),
    "Python objects": (lambda t: t["tensors"][A].update(dtype="object"), "dtype 'object'"),
    "a negative size": (lambda t: t["tensors"][A].update(shape=[-40, 30]), "no shape"),
    "a step of text": (lambda t: t["description"].update(step="9"), "step = '9'"),
    "another version": (lambda t: t.update(version=9), "version 9"),
    "a size that is not its own": (lambda t: t.update(bytes=7), "shardkit-image"),
    "no tensors": (lambda t: t.pop("tensors"), "tensors"),
}


@pytest.mark.parametrize("case", IMAGES)
def test_a_forged_image_is_refused(case):
    edit, words = IMAGES[case]
    image = forged_image(edit)
    refused(lambda: read_image(image), words)


def test_an_image_that_is_not_forged_is_read():
    tensors, description = read_image(forged_image(lambda table: None))
    assert (tensors[A] == 1).all() and description == described()
