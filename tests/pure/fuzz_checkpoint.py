"""python fuzz_checkpoint.py FOLDER FIRST COUNT: damage copies of checkpoints and images, and see
what loading says.

Prints a JSON object: how many of each outcome, and what went wrong. Mutation number N is the same
in every run.

    accidents   flipped bits, lost ends, exchanged files, edited attributes and manifests: an error,
                or nothing changed
    forgeries   the same on manifests and images whose checksum was made right again: an error, or a
                load without any other exception and without taking memory for sizes that no file
                has
"""

import json
import os
import random
import resource
import shutil
import sys
import zlib
from collections import Counter
from pathlib import Path

import h5py
import numpy
from checkpoints import described, owned_part, rows, save_boxes, seal
from damage import BYTES, deep_text, edit_json

import shardkit as sk
from shardkit.testing.checkpoint import (
    Candidates,
    Checkpoint,
    Wanted,
    describe,
    image_of,
    read_image,
)
from shardkit.testing.layout import Box

MOST_MEMORY = 4 << 30  # of address space: taking memory for a forged size is a MemoryError
SHAPES = {
    "model/a": (37, 21),
    "model/b": (5,),
    "model/large": (300, 1000),
    "optimizer/m/a": (37, 21),
    "optimizer/m/b": (5,),
    "optimizer/m/large": (300, 1000),
}
WANTED = Wanted(
    {tensor: (shape, "float32") for tensor, shape in SHAPES.items()},
    described()["model"],
    None,
    {"rule": "SGD", "state": ["m"]},
    can_be_late=True,
)
FILES = ["rank-00000.h5", "rank-00001.h5", "index.h5", "manifest.json"]


# ---- what is damaged -----------------------------------------------------------------------------


def truth(step):
    """{tensor: its values} of the checkpoint of this step."""
    return {
        tensor: numpy.random.default_rng([step, number]).random(shape, "float32")
        for number, (tensor, shape) in enumerate(SHAPES.items())
    }


def originals(folder):
    """Make two checkpoints in one store; return the folder of step 1, and an image of step 1."""
    for step in (1, 2):
        boxes = {tensor: (array, rows(array.shape, 2)) for tensor, array in truth(step).items()}
        save_boxes(folder / "store", boxes, step)
    return folder / "store" / "step-00000001", image_of(truth(1), described(1))


# ---- mutations of JSON ---------------------------------------------------------------------------


def edited(rng, text, *, is_sealed):
    table = json.loads(text)
    stated = table.pop("crc32")
    edit_json(rng, table)
    again = json.dumps({"crc32": "00000000", **table})
    again = deep_text(again)
    return seal(again) if is_sealed else again.replace("00000000", stated, 1)


# ---- mutations of a checkpoint -------------------------------------------------------------------


def damage_bytes(rng, folder):
    path = folder / rng.choice(FILES)
    content = bytearray(path.read_bytes())
    rng.choice(BYTES)(rng, content)
    path.write_bytes(content)


def exchange_files(rng, folder):
    a, b = (folder / name for name in rng.sample(FILES[:3], 2))
    other = folder.parent / "other.tmp"
    a.rename(other)
    b.rename(a)
    other.rename(b)


def file_of_another_step(rng, folder):
    name = rng.choice(FILES)
    shutil.copy(folder.parent / "step-00000002" / name, folder / name)


def lose_a_file(rng, folder):
    (folder / rng.choice(FILES)).unlink()


def link_instead_of_a_file(rng, folder):
    path = folder / rng.choice(FILES)
    target = path.rename(folder.parent / f"moved-{path.name}")
    path.symlink_to(target)


def edit_hdf5(rng, folder):
    with h5py.File(folder / rng.choice(FILES[:3]), "r+") as file:
        items = []
        file.visititems(lambda name, item: items.append(item))
        item = rng.choice(items)
        if item.attrs and rng.random() < 0.6:
            name = rng.choice(list(item.attrs))
            if rng.random() < 0.3:
                del item.attrs[name]
            else:
                item.attrs[name] = numpy.array([rng.randrange(-5, 50)] * rng.choice((1, 2, 3)))
        elif isinstance(item, h5py.Dataset) and not item.is_virtual and rng.random() < 0.5:
            item[...] = 0.5
        else:
            del file[item.name]


def edit_manifest_by_accident(rng, folder):
    path = folder / "manifest.json"
    path.write_text(edited(rng, path.read_text(), is_sealed=False))


def edit_manifest_with_malice(rng, folder):
    path = folder / "manifest.json"
    path.write_text(edited(rng, path.read_text(), is_sealed=True))


ACCIDENTS = [damage_bytes] * 8 + [
    exchange_files,
    file_of_another_step,
    lose_a_file,
    link_instead_of_a_file,
    edit_hdf5,
    edit_hdf5,
    edit_manifest_by_accident,
    edit_manifest_by_accident,
]


# ---- what loading says ---------------------------------------------------------------------------


def load(store):
    """(manifest, {tensor: values}) of the checkpoint in the store; all the ways to look at it must
    agree that it is valid.
    """
    backend = sk.InMemoryCommunicationBackend(0, 1, environment_id="fuzz")
    backend.initialize()
    try:
        tensors = {
            tensor: numpy.full(shape, numpy.nan, "float32") for tensor, shape in SHAPES.items()
        }
        parts = [
            owned_part(tensor, array, Box.whole(array.shape)) for tensor, array in tensors.items()
        ]
        checkpoint, _ = Candidates.at(store).first_good(
            backend, lambda found, fit: found.read_verified(fit.taken(parts), backend), WANTED
        )
        checkpoint.verify()
        describe(checkpoint.folder, verify=True)
        return checkpoint.manifest, {
            tensor: values.reshape(SHAPES[tensor]) for tensor, _, values in parts
        }
    finally:
        backend.shutdown()


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        numpy.array_equal(found[tensor], wanted[tensor]) for tensor in wanted
    )


def fuzz_checkpoint(rng, original, scratch, mutation):
    """The outcome for a damaged copy."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(original, scratch / "step-00000001")
    shutil.copytree(original.parent / "step-00000002", scratch / "step-00000002")
    mutation(rng, scratch / "step-00000001")
    shutil.rmtree(scratch / "step-00000002")
    try:
        manifest, tensors = load(scratch)
    except sk.CheckpointError:
        return "refused"
    is_true = same(tensors, truth(1)) and manifest == Checkpoint(original).manifest
    return "harmless" if is_true else "changed"


def fuzz_image(rng, image, is_forged):
    content = bytearray(image)
    rng.choice(BYTES)(rng, content)
    if is_forged and rng.random() < 0.5:
        end = image.index(b"\0")
        text = edited(rng, image[:end].decode(), is_sealed=False).encode().ljust(end)
        content = bytearray(text) + image[len(text) :]
    if is_forged and len(content) > 40:
        content[11:19] = b"00000000"
        content[11:19] = f"{zlib.crc32(content):08x}".encode()
    try:
        tensors, description = read_image(bytes(content))
    except sk.CheckpointError:
        return "refused"
    is_true = same(tensors, truth(1)) and description == described(1)
    return "harmless" if is_true else "changed"


def main(folder, first, count):
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    folder.mkdir(parents=True)
    original, image = originals(folder)
    outcomes, problems = Counter(), []
    for number in range(first, first + count):
        rng = random.Random(number)
        target, is_forged = rng.choice(["checkpoint"] * 5 + ["image"]), rng.random() < 0.25
        mutation = edit_manifest_with_malice if is_forged else rng.choice(ACCIDENTS)
        try:
            if target == "image":
                outcome = fuzz_image(rng, image, is_forged)
            else:
                outcome = fuzz_checkpoint(rng, original, folder / "scratch", mutation)
        except Exception as error:
            outcome = "crashed"
            problems.append(f"{number}: {type(error).__name__} {error}")
        if outcome == "changed" and not is_forged:
            problems.append(
                f"{number}: {target} {mutation.__name__} changed what was loaded, and nobody "
                f"noticed"
            )
        outcomes["forgery " * is_forged + outcome] += 1
    print(json.dumps({"outcomes": outcomes, "problems": problems}))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
