"""Loading reads what is wanted and no more, through a window; GPU arrays."""

import tracemalloc

import numpy
import pytest
from builders import sha256, small_gpt, token_batch, train
from checkpoints import described, edit_manifest, flip_bit, owned_part, rows, save_boxes

import shardkit as sk
from shardkit.testing.checkpoint import (
    READERS,
    SEGMENT_BYTES,
    Candidates,
    Checkpoint,
    CheckpointStore,
    Reader,
)
from shardkit.testing.layout import Box

WINDOW_BYTES = READERS * SEGMENT_BYTES


def numbers(*shape, dtype="float32"):
    return numpy.arange(numpy.prod(shape, dtype=int), dtype=dtype).reshape(shape)


@pytest.fixture
def bytes_read(monkeypatch):
    """A list of the sizes of all reads."""
    sizes, read = [], Reader.read

    def counted(self, file, at, view):
        sizes.append(len(view))
        read(self, file, at, view)

    monkeypatch.setattr(Reader, "read", counted)
    return sizes


def peak_of(work):
    """The most bytes that Python and NumPy had at once during this, beyond what they had before."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


# a shape, and columns of it; rows of 4 KiB are read whole, of rows of 2 MiB only what is wanted
STRIDED = {
    "short rows": ((16384, 1024), slice(256, 512)),
    "long rows": ((32, 1 << 19), slice(1 << 17, 1 << 18)),
}


@pytest.mark.parametrize("case", STRIDED)
@pytest.mark.thorough(but=1)
def test_columns_of_a_large_box_that_was_written_by_rows_pass_through_a_fixed_window(
    case, tmp_path, bytes_read
):
    shape, columns = STRIDED[case]
    whole = numbers(*shape)
    checkpoint = Checkpoint(save_boxes(tmp_path, {"model/a": (whole, rows(shape, 1))}))
    part = owned_part(
        "model/a", whole, Box((0, columns.start), (shape[0], columns.stop - columns.start))
    )
    wanted = part[2].copy()
    part[2].fill(0)
    bytes_read.clear()
    peak = peak_of(lambda: checkpoint.read_into([part]))
    assert whole.nbytes > 16 * SEGMENT_BYTES and peak < WINDOW_BYTES + (1 << 20)
    numpy.testing.assert_array_equal(part[2], wanted)
    if case == "long rows":
        assert sum(bytes_read) == part[2].nbytes
    assert max(bytes_read) <= SEGMENT_BYTES


@pytest.mark.thorough
def test_a_load_takes_no_memory_beyond_the_window_whatever_the_size_of_the_tensor(tmp_path):
    whole = numbers(24 << 20)
    checkpoint = Checkpoint(save_boxes(tmp_path, {"model/a": (whole, rows(whole.shape, 2))}))
    part = owned_part("model/a", numpy.zeros_like(whole), Box.whole(whole.shape))
    backend = sk.InMemoryCommunicationBackend(0, 1, environment_id="load in a window")
    backend.initialize()
    assert peak_of(lambda: checkpoint.read_verified([part], backend)) < WINDOW_BYTES + (1 << 20)
    numpy.testing.assert_array_equal(part[2], whole)
    assert peak_of(checkpoint.verify) < WINDOW_BYTES + (1 << 20)


def test_a_save_takes_no_memory_beyond_the_window(tmp_path):
    whole = numbers(24 << 20)
    part = owned_part("model/a", whole, Box.whole(whole.shape))
    backend = sk.InMemoryCommunicationBackend(0, 1, environment_id="save in a window")
    backend.initialize()
    peak = peak_of(lambda: CheckpointStore(tmp_path).save([part], backend, described()))
    assert peak < WINDOW_BYTES + (1 << 20)


def test_a_model_that_was_just_made_reads_every_byte_once(tmp_path, bytes_read):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        model.save_model(tmp_path)
        fresh, _ = train("FSDP", backend, 0)
        backend.barrier()
        bytes_read.clear()
        backend.barrier()
        fresh.load_model(tmp_path)
        backend.barrier()
        return sha256(fresh.gather_full_parameters()) == sha256(model.gather_full_parameters())

    assert sk.run_ranks(2, on_rank) == [True, True]
    folder = tmp_path / "step-00000001"
    assert sum(bytes_read) == sum(
        file.stat().st_size for file in folder.iterdir() if file.name != "manifest.json"
    )


@pytest.mark.parametrize("steps", [0, 1])
def test_damage_that_is_found_late_leaves_the_model_as_it_was(steps, tmp_path):
    """Of a model that was just made the arrays are half filled by then; they are made again."""

    def on_rank(backend):
        model, _ = train("ZeRO-1", backend, 2)
        model.save_model(tmp_path)
        if backend.rank == 0:
            checkpoint = Checkpoint(tmp_path / "step-00000002")
            last = checkpoint.manifest["tensors"]["optimizer/second_moment/head.output.weight"][
                "boxes"
            ][-1]
            flip_bit(checkpoint.folder / last[0], at=last[4])
        backend.barrier()
        other, _ = train("DDP", backend, steps)
        before, state = other.gather_full_parameters(), other.serialize()
        with pytest.raises(sk.CheckpointError, match="output.weight.* checksum"):
            other.load_model(tmp_path)
        numpy.testing.assert_array_equal(other.gather_full_parameters(), before)
        assert other.serialize() == state
        other.train(*sk.split_batch(other.mesh, *token_batch(steps)))
        expected, _ = train("DDP", backend, steps + 1)
        numpy.testing.assert_array_equal(
            other.gather_full_parameters(), expected.gather_full_parameters()
        )

    sk.run_ranks(2, on_rank)


def test_parameters_that_were_set_before_wrapping_are_not_lost_in_a_failed_load(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        folder = model.save_model(tmp_path)
        if backend.rank == 0:
            flip_bit(CheckpointStore(tmp_path).folder_of(1) / "rank-00001.h5")
        backend.barrier()
        mine = small_gpt()
        for parameter in mine.parameters():
            parameter.array = numpy.full(parameter.shape, 0.25, "float32")
        other, _ = train("FSDP", backend, 0, model=mine)
        with pytest.raises(sk.CheckpointError, match="no valid"):
            other.load_model(tmp_path)
        assert folder and set(other.gather_full_parameters().tolist()) == {0.25}

    sk.run_ranks(2, on_rank)


@pytest.mark.parametrize("version", [1, 2])
def test_a_version_that_no_release_wrote_is_one_clear_refusal(version, tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 2)
        model.save_model(tmp_path)
        if backend.rank == 0:
            folder = CheckpointStore(tmp_path).folder_of(2)
            edit_manifest(folder, lambda manifest: manifest.update(version=version))
        backend.barrier()
        before = model.gather_full_parameters()
        refusal = f"format version {version}.* reads versions 3 and 4: no release wrote an older"
        with pytest.raises(sk.CheckpointError, match=refusal):
            model.load_model(tmp_path)
        numpy.testing.assert_array_equal(model.gather_full_parameters(), before)

    sk.run_ranks(2, on_rank)
    refusal = f"step-00000002 has format version {version}"
    with pytest.raises(sk.CheckpointError, match=refusal):
        sk.models.GPT.from_checkpoint(tmp_path)


class FakeDeviceArray:
    """An array that says it is on a GPU, and can only be filled and read as such."""

    def __init__(self, array):
        self._array, self.shape, self.dtype, self.size = array, array.shape, array.dtype, array.size
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "version": 3,
            "data": (array.ctypes.data, False),
        }

    def __getitem__(self, index):
        return FakeDeviceArray(self._array[index])

    def __setitem__(self, index, values):
        self._array[index] = values

    def reshape(self, shape):
        return FakeDeviceArray(self._array.reshape(shape))

    def get(self, out=None):
        if out is None:
            return self._array.copy()
        out[...] = self._array

    def set(self, values):
        assert values.flags.c_contiguous and values.dtype == self.dtype
        self._array[...] = values


def test_gpu_arrays_are_saved_and_filled_through_the_host(tmp_path):
    whole = numbers(600, 900)
    backend = sk.InMemoryCommunicationBackend(0, 1, environment_id="gpu arrays")
    backend.initialize()
    tensor, piece, values = owned_part("model/a", whole, Box.whole(whole.shape))
    CheckpointStore(tmp_path).save([(tensor, piece, FakeDeviceArray(values))], backend, described())
    for box in (Box.whole(whole.shape), Box((100, 7), (400, 30))):
        tensor, piece, values = owned_part("model/a", numpy.zeros_like(whole), box)
        part = tensor, piece, FakeDeviceArray(values)
        Candidates.at(tmp_path).first_good(
            backend, lambda found, fit, part=part: found.read_verified([part], backend)
        )
        numpy.testing.assert_array_equal(values.reshape(box.shape), whole[box.slices()])
