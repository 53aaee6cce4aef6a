"""Tables of files, and which files hold what: against lists of all boxes."""

import json
import random
from itertools import product

import numpy
import pytest
from checkpoints import described

import shardkit as sk
from shardkit.testing.checkpoint import (
    SEGMENT_BYTES,
    FileTable,
    StoredBox,
    Summary,
    TabledBoxes,
    TensorCut,
    are_whole,
    checksum,
    encoded,
    fingerprint,
    num_segments,
    range_of,
    read_manifest,
    runs_of,
    table_bytes,
    tabled,
    tables_of,
    write_manifest,
)
from shardkit.testing.layout import Box, FlatLayout

SHAPES = {"model/a": (12, 7), "model/b": (5,), "model/c": (), "model/d": (3, 4, 5)}


def stored_boxes(layout, rank, *, states=("model",), whole=None):
    """The boxes of a rank's file."""
    at, boxes = 4096, []
    for state, piece in product(states, layout.pieces(rank)):
        tensor = piece.name.replace("model", state)
        number = sum(box.tensor == tensor for box in boxes)
        checksums = tuple(f"{at + i:016x}" for i in range(num_segments(4 * piece.box.size)))
        place = f"rank-{rank:05d}.h5", f"{tensor}/{number}"
        form = piece.box, piece.global_shape, "float32"
        boxes.append(StoredBox(tensor, *place, *form, at, checksums))
        at += 4 * piece.box.size + 8 * rank
    return boxes


def layout_of(num_ranks, shapes=SHAPES, alignment=1):
    return FlatLayout.of(shapes, num_ranks, alignment=alignment)


# ---- sequences -----------------------------------------------------------------------------------


def test_runs_hold_the_sequence():
    rng = random.Random(0)
    for _ in range(300):
        numbers = [rng.randrange(9) * rng.choice([1, 5]) for _ in range(rng.randrange(1, 20))]
        runs = runs_of(numpy.array(numbers))
        assert [a + step * i for a, step, count in runs for i in range(count)] == numbers
    assert runs_of(numpy.arange(5, 500, 7)) == [[5, 7, 71]]
    assert runs_of(numpy.array([4])) == [[4, 0, 1]]


@pytest.mark.parametrize(
    "runs",
    [
        [[-1, 1, 3]],
        [[5, -3, 3]],
        [[0, 1, 0]],
        [[0, 1, 1 << 40]],
        [[0, 1 << 60, 9]],
        [[0, 1]],
        [[0, True, 2]],
        ["012"],
        [[0, 1.0, 2]],
        [[0, 0, 5]],
        [[0, 0, 2]] * 3,
    ],
)
def test_runs_that_are_none_are_refused(runs):
    entry = {"files": [[0, 1, 1]], "starts": [[0, 0, 1]], "sizes": runs}
    with pytest.raises(sk.CheckpointError):
        TensorCut(entry, 4).last_file() or TensorCut(entry, 4).files(0, 9)


# ---- coverage ------------------------------------------------------------------------------------


def test_a_fingerprint_is_the_sum_over_elements():
    rng = random.Random(1)
    for shape in [(), (4,), (3, 5), (2, 3, 4)]:
        for _ in range(10):
            offset = tuple(rng.randrange(size) for size in shape)
            size = tuple(rng.randrange(size - at + 1) for size, at in zip(shape, offset))
            box = Box(offset, size)
            elements = product(*(range(at, stop) for at, stop in zip(box.offset, box.stop)))
            one = sum(fingerprint("model/a", Box(at, (1,) * len(at))) for at in elements)
            assert (one - fingerprint("model/a", box)) % ((1 << 61) - 1) == 0


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_only_what_tiles_every_tensor_once_is_whole(num_ranks):
    rng = random.Random(num_ranks)
    layout = layout_of(num_ranks)
    files = [stored_boxes(layout, rank) for rank in range(num_ranks)]

    def is_whole(files):
        summaries = [Summary.of(boxes) for boxes in files]
        return are_whole(tables_of(summaries)[0], summaries)

    assert is_whole(files)
    for _ in range(20):
        spoilt = [list(boxes) for boxes in files]
        victim, other = rng.choice(spoilt), rng.choice(spoilt)
        if not victim:
            continue
        box = rng.choice(victim)
        kind = rng.randrange(3)
        if kind == 0 and sum(b.tensor == box.tensor for own in spoilt for b in own) > 1:
            victim.remove(box)
        elif kind == 1:
            other.append(box)
        else:
            twin = [b for own in spoilt for b in own if b.box.size == box.box.size and b != box]
            twin = [b for b in twin if len(b.box.shape) == len(box.box.shape)]
            if not twin:
                continue
            victim.remove(box)
            victim.append(rng.choice(twin))  # as many elements as before
        assert not is_whole(spoilt)


def test_owners_that_do_not_agree_are_named():
    one = Summary.of(stored_boxes(layout_of(1), 0))
    other = Summary.of(stored_boxes(layout_of(1, {"model/a": (7, 12)}), 0))
    with pytest.raises(sk.CheckpointError, match="two owners of model/a do not agree: float32"):
        tables_of([one, other])


# ---- which files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 2, 5, 40])
def test_the_files_that_hold_something_are_found(num_ranks):
    layout = layout_of(num_ranks)
    files = [stored_boxes(layout, rank) for rank in range(num_ranks)]
    tensors, parts = tables_of([Summary.of(boxes) for boxes in files])
    tensors, parts = json.loads(json.dumps([tensors, parts]))
    for tensor, shape in SHAPES.items():
        entry = tensors[tensor]
        assert (tuple(entry["shape"]), entry["dtype"]) == (shape, "float32")
        size = max(1, int(numpy.prod(shape)))
        for start in range(size):
            wanted = {
                rank
                for rank, boxes in enumerate(files)
                for box in boxes
                if box.tensor == tensor and element_in(box, start)
            }
            found = TensorCut(parts[entry["parts"]], num_ranks).files(start, start + 1)
            assert wanted <= {entry["first"] + file for file in found}
            assert len(found) <= 2, "a file between whose elements are those of another"


def element_in(stored, number):
    index = numpy.unravel_index(number, stored.global_shape) if stored.global_shape else ()
    return stored.box.contains(Box(tuple(map(int, index)), (1,) * len(index)))


def test_tensors_that_are_cut_alike_share_an_entry_and_regular_cuts_are_a_formula():
    """Bytes of what the manifest says about tensors do not grow with the ranks."""
    sizes = []
    shapes = {f"model/{n}.{name}": (512, 64) for n in range(4) for name in "abcd"}
    for num_ranks in (16, 128, 1024):
        layout = layout_of(num_ranks, shapes, alignment=64)
        states = "model", "optimizer/m", "optimizer/v"
        files = [stored_boxes(layout, rank, states=states) for rank in range(num_ranks)]
        tensors, parts = tables_of([Summary.of(boxes) for boxes in files])
        assert (
            len({tensors[name.replace("model", s)]["parts"] for name in shapes for s in states})
            <= 2
        )
        sizes.append(len(json.dumps([tensors, parts])))
    assert sizes[2] < 1.1 * sizes[0], sizes


@pytest.mark.parametrize("num_ranks, num_readers", [(40, 30), (3, 8), (1, 2), (20, 1)])
@pytest.mark.parametrize("most_bytes", [1, 1 << 28])
def test_a_rank_opens_the_tables_of_what_it_reads(
    tmp_path, monkeypatch, num_ranks, num_readers, most_bytes
):
    """Values aside: a folder of tables, as many ranks write it, and what others find there."""
    monkeypatch.setattr(tabled, "_MOST_TABLE_BYTES", most_bytes)
    written, wanted = layout_of(num_ranks), layout_of(num_readers)
    summaries, records = [], {}
    for rank in range(num_ranks):
        boxes = stored_boxes(written, rank)
        name, content = f"rank-{rank:05d}.h5", encoded(boxes)
        size = max([box.at + box.box_bytes for box in boxes], default=4096)
        (tmp_path / name).write_bytes(content.ljust(size, b"\0"))
        segments = sum(len(box.checksums) for box in boxes)
        place = [0, len(content), segments, checksum(content)]
        records[name] = {"bytes": size, "crc32": "00000000", "table": place}
        summaries.append(Summary.of(boxes))
    write_manifest(tmp_path, described(), records, *tables_of(summaries))
    found = TabledBoxes(tmp_path, read_manifest(tmp_path))
    assert len(found) == sum(record["table"][2] for record in records.values())
    for rank in range(num_readers):
        files = set()
        for piece in wanted.pieces(rank):
            boxes = found.of(piece.name, piece.box)
            files |= {box.file for box in boxes}
            start, stop = range_of(piece.box, piece.global_shape)
            assert any(range_of(box.box, box.global_shape)[0] <= start for box in boxes)
            for box in boxes:
                number = found.number(box, 0)
                assert found[number][0] == box and box in found.boxes_of(box.file)
        assert len(files) <= num_ranks / num_readers + 2


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 3, 200])
def test_a_table_gives_back_the_boxes(num_ranks):
    for rank in (0, num_ranks - 1):
        boxes = stored_boxes(layout_of(num_ranks), rank, states=("model", "optimizer/m"))
        shuffled = random.Random(0).sample(boxes, len(boxes))
        content = encoded(shuffled)
        assert len(content) == table_bytes(boxes)
        table = FileTable(f"rank-{rank:05d}.h5", 1 << 20, content)
        assert table.boxes() == boxes
        assert len(table) == sum(len(box.checksums) for box in boxes)
        for box in boxes:
            assert box in table.boxes_of(box.tensor)
            assert table.segment(table.number(box, 0)) == (
                box,
                0,
                min(SEGMENT_BYTES, box.box_bytes),
            )
        assert table.boxes_of("model/other") == []


def test_segments_of_large_boxes_are_numbered():
    layout = layout_of(1, {"model/large": (3, SEGMENT_BYTES // 4 + 5)})
    (box,) = stored_boxes(layout, 0)
    table = FileTable(box.file, 1 << 30, encoded([box]))
    assert len(table) == 4
    cuts = [table.segment(number)[1:] for number in range(4)]
    assert cuts[0] == (0, SEGMENT_BYTES) and cuts[3] == (3 * SEGMENT_BYTES, box.box_bytes)
    assert [table.number(box, start) for start, _ in cuts] == [0, 1, 2, 3]


def test_a_table_that_is_none_is_refused_and_takes_no_memory():
    """Whatever is changed in it, it describes boxes in the file or is refused by its name."""
    rng = random.Random(3)
    content = encoded(stored_boxes(layout_of(2), 1))
    num_refused = 0
    for _ in range(400):
        spoilt = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            spoilt[rng.randrange(len(spoilt))] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        spoilt = spoilt[: rng.choice([len(spoilt), len(spoilt), rng.randrange(len(spoilt))])]
        try:
            for box in FileTable("rank-00001.h5", 1 << 14, bytes(spoilt)).boxes():
                assert box.at + box.box_bytes <= 1 << 14
        except sk.CheckpointError as error:
            num_refused += 1
            assert "rank-00001.h5" in str(error)
    assert num_refused > 100
