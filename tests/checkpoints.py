"""Checkpoints that tests look into, damage and forge."""

import json
import zlib
from pathlib import Path

import numpy

import shardkit as sk
from shardkit.testing.checkpoint import CheckpointStore, find_model, gpt_of
from shardkit.testing.layout import Box, Piece

DESCRIPTION = {
    "samples_seen": 0,
    "seed": 0,
    "last_loss": None,
    "mesh": {"data": 1},
    "strategy": "none",
    "active_features": None,
    "model": {"class": "GPT", "configuration": {}},
    "optimizer": {"rule": "SGD"},
}


def described(step=1, **changes):
    """Return a description that save() takes."""
    return {**DESCRIPTION, "step": step, **changes}


def plain_gpt(path):
    """Return the unsharded GPT of what is found at this path, with its weights."""
    checkpoint, *_ = find_model(path)
    model = gpt_of(checkpoint, "is compared")
    for name, parameter in model.named_parameters().items():
        parameter.array = checkpoint.read_whole(f"model/{name}")
    return model


def owned_part(tensor, array, box):
    """Return what the owner of this box of a whole array gives to save(), or to a load to fill."""
    values = numpy.ascontiguousarray(array[box.slices()]).reshape(-1)
    return tensor, Piece(tensor, box, 0, values.size, array.shape), values


def save_boxes(path, tensors, step=1, **how):
    """Save {tensor: (array, [boxes of rank 0, boxes of rank 1, ...])} from that many ranks; return
    the folder.
    """
    num_ranks = len(next(iter(tensors.values()))[1])

    def on_rank(backend):
        owned = [
            owned_part(tensor, array, box)
            for tensor, (array, parts) in tensors.items()
            for box in parts[backend.rank]
        ]
        return CheckpointStore(path).save(owned, backend, described(step), **how)

    return Path(sk.run_ranks(num_ranks, on_rank)[0])


def rows(shape, num_parts):
    """Return the boxes of a cut along dim 0, one list per rank."""
    marks = [shape[0] * i // num_parts for i in range(num_parts + 1)]
    return [
        [Box((a,) + (0,) * (len(shape) - 1), (b - a, *shape[1:]))] for a, b in zip(marks, marks[1:])
    ]


def flip_bit(path, at=None):
    """Change one bit, by default in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def edit_manifest(folder, edit, *, sealed=True):
    """Change the manifest as somebody would who knows the rules.

    Not sealed: leave its checksum wrong.
    """
    manifest = json.loads((folder / "manifest.json").read_text())
    edit(manifest)
    stated = manifest.pop("crc32", "00000000")
    text = json.dumps({"crc32": "00000000", **manifest})
    (folder / "manifest.json").write_text(
        seal(text) if sealed else text.replace("00000000", stated, 1)
    )


def seal(text):
    """Return a manifest whose first member is "crc32": "00000000" with the right digits."""
    return text.replace("00000000", f"{zlib.crc32(text.encode()):08x}", 1)
