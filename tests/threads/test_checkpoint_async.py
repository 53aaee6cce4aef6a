"""Checkpoints that are written while training goes on."""

import threading

import numpy
import pytest
from builders import sha256, token_batch, train

import shardkit as sk
from shardkit.testing.checkpoint import CheckpointStore, rank_file, saving
from shardkit.testing.parallel import device_of, training_state_of


def go_on(model, steps=1):
    """Train some steps more; SHA-256 of the parameters then."""
    for _ in range(steps):
        model.train(*sk.split_batch(model.mesh, *token_batch(model.step_number)))
    return sha256(model.gather_full_parameters())


def until_committed(model, pending):
    while not pending.is_committed:
        go_on(model)


@pytest.fixture
def gate(monkeypatch):
    """Threads that write wait until this event is set."""
    event, write = threading.Event(), rank_file.RankFile.write

    def wait_and_write(self, *arguments, **more):
        assert event.wait(500)
        write(self, *arguments, **more)

    monkeypatch.setattr(rank_file.RankFile, "write", wait_and_write)
    return event


def test_what_is_stored_is_the_step_of_the_call_however_far_training_has_gone(tmp_path, gate):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 2)
        before = sha256(model.gather_full_parameters())
        pending = model.save_model_async(tmp_path, data_position={"next": 2})
        bits = go_on(model, 3)
        assert not pending.is_committed and not CheckpointStore(tmp_path).steps()
        backend.barrier()
        gate.set()
        until_committed(model, pending)
        assert pending.pause_seconds > 0 and pending.write_seconds > 0
        other, _ = train("ZeRO-1", backend, 0)
        manifest = other.load_model(tmp_path)
        assert manifest["step"] == 2 and manifest["data_position"] == {"next": 2}
        assert sha256(other.gather_full_parameters()) == before
        return go_on(other, 3) == bits

    assert all(sk.run_ranks(2, on_rank))
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == ["step-00000002"]


def test_a_checkpoint_goes_where_the_call_said_though_the_working_folder_is_changed(
    tmp_path, gate, monkeypatch
):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        pending = model.save_model_async("saved")
        monkeypatch.chdir(tmp_path / "other")
        gate.set()
        pending.wait()
        other, _ = train("ZeRO-1", backend, 0)
        return other.load_model(tmp_path / "saved")["step"]

    assert sk.run_ranks(1, on_rank) == [1]


@pytest.mark.parametrize("strategy", ["DDP", "FSDP"])
@pytest.mark.thorough(but=1)
def test_the_copies_are_in_the_same_memory_every_time(strategy, tmp_path):
    def on_rank(backend):
        model, _ = train(strategy, backend, 1)
        places, device = [], device_of(model)
        for _ in range(3):
            pending = model.save_model_async(tmp_path)
            places.append([copy.ctypes.data for _, _, copy in pending._copies])
            taken = device.bytes_in_use("checkpoint snapshot")
            pending.wait()
            go_on(model)
        owned = sum(array.nbytes for _, _, array in training_state_of(model).counted_boxes())
        assert owned <= taken < owned + 64 * len(places[0])
        return places[0] == places[1] == places[2]

    assert all(sk.run_ranks(2, on_rank))


@pytest.mark.parametrize("where", ["lay_out", "write_arrays", "write_index", "write_manifest"])
@pytest.mark.thorough(but=2)
def test_a_write_that_fails_surfaces_at_a_later_step_on_all_ranks_and_leaves_nothing(
    where, tmp_path, monkeypatch
):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        model.save_model(tmp_path)
        go_on(model)
        backend.barrier()
        if backend.rank == 0:
            place = rank_file if hasattr(rank_file, where) else saving
            monkeypatch.setattr(place, where, no_room)
        backend.barrier()
        pending = model.save_model_async(tmp_path)
        with pytest.raises(OSError, match="No space left"):
            until_committed(model, pending)
        assert not pending.is_committed
        step = model.step_number
        backend.barrier()
        if backend.rank == 0:
            monkeypatch.undo()
        backend.barrier()
        go_on(model)
        assert model.step_number == step + 1
        model.save_model_async(tmp_path).wait()
        return step

    def no_room(path, *arguments, **more):
        raise OSError(28, "No space left on device", str(path))

    step, other = sk.run_ranks(2, on_rank)
    assert step == other
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == [
        "step-00000001",
        f"step-{step + 1:08d}",
    ]
    assert not list(tmp_path.glob("*.tmp"))


def test_an_error_of_one_rank_stops_the_writing_of_the_others(tmp_path, monkeypatch):
    started, write = threading.Event(), rank_file.write_arrays

    def rank_1_fails(path, parts, cancelled, copies):
        if path.name == "rank-00001.h5":
            raise OSError(5, "Input/output error", str(path))
        started.set()
        assert cancelled.wait(500), "rank 0 was not told"
        return write(path, parts, cancelled, copies)

    monkeypatch.setattr(rank_file, "write_arrays", rank_1_fails)

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        pending = model.save_model_async(tmp_path)
        assert started.wait(500)
        with pytest.raises(OSError, match="rank-00001.h5"):
            until_committed(model, pending)

    sk.run_ranks(2, on_rank)
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.thorough
def test_a_second_save_waits_for_the_first(tmp_path, gate):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        first = model.save_model_async(tmp_path)
        go_on(model)
        opener = threading.Timer(0.3, gate.set)
        opener.start()
        second = model.save_model_async(tmp_path)
        assert first.is_committed and not second.is_committed
        assert second.pause_seconds > 0.1
        go_on(model)
        model.save_model(tmp_path)
        assert second.is_committed

    sk.run_ranks(2, on_rank)
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == [
        f"step-{step:08d}" for step in (1, 2, 3)
    ]


@pytest.mark.parametrize("way", ["wait", "close", "load"])
def test_waiting_closing_and_loading_commit_it(way, tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        pending = model.save_model_async(tmp_path)
        if way == "wait":
            assert pending.wait() == pending.folder == pending.wait()
        elif way == "close":
            model.close()
        else:
            assert model.load_model(tmp_path)["step"] == 1
        assert pending.is_committed

    sk.run_ranks(2, on_rank)
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == ["step-00000001"]


def test_a_clone_knows_of_the_save_and_a_deep_copy_has_saves_of_its_own(tmp_path, gate):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        pending = model.save_model_async(tmp_path)
        clone, deep = model.clone(), model.deep_copy()
        backend.barrier()
        gate.set()
        deep.save_model(tmp_path / "deep")
        assert not pending.is_committed
        clone.save_model(tmp_path / "clone")
        assert pending.is_committed

    sk.run_ranks(2, on_rank)


def test_steps_without_a_save_in_flight_talk_no_more_than_before(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        calls = []
        for save in (False, True, False):
            if save:
                model.save_model_async(tmp_path).wait()
            before = backend.progress.num_calls(backend.group_key)
            go_on(model)
            calls.append(backend.progress.num_calls(backend.group_key) - before)
        return calls

    for calls in sk.run_ranks(2, on_rank):
        assert calls[0] == calls[1] == calls[2]


def test_manual_steps_are_step_boundaries_too(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        pending = model.save_model_async(tmp_path)
        while not pending.is_committed:
            gradients = model.compute_gradients(
                *sk.split_batch(model.mesh, *token_batch(model.step_number))
            )
            if model.step_number % 2:
                model.apply_gradients(gradients, learning_rate=0.01)
            else:
                model.step()
        return numpy.isfinite(model.gather_full_parameters()).all()

    assert all(sk.run_ranks(2, on_rank))
