"""Whatever happens while a checkpoint is written, one before it still opens; and what is kept of
older ones.
"""

import errno
import os
import resource
import shutil
import subprocess
import threading
from pathlib import Path

import numpy
import pytest
from builders import small_gpt, token_batch, train
from checkpoints import described, edit_manifest, flip_bit, owned_part, rows, save_boxes
from clean_fork import exit_code

import shardkit as sk
from shardkit.testing.checkpoint import (
    Candidates,
    Checkpoint,
    CheckpointStore,
    files,
    rank_file,
    saving,
)
from shardkit.testing.layout import Box
from shardkit.testing.parallel import parts_of

SHAPE = (40, 30)


class Disk:
    """Counts what is done to the disk, on all ranks, and does `then` instead of number `at`."""

    FUNCTIONS = [
        (os, "pwrite"),
        (os, "fsync"),
        (os, "rename"),
        (os, "link"),
        (os, "unlink"),
        (os, "rmdir"),
        (Path, "mkdir"),
        (rank_file, "lay_out"),
        (saving, "write_index"),
    ]

    def __init__(self, monkeypatch, at, then):
        self._at, self._then, self._lock, self.num_calls = at, then, threading.Lock(), 0
        for place, name in self.FUNCTIONS:
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, function):
        def counted(*arguments, **more):
            with self._lock:
                is_now = self.num_calls == self._at
                self.num_calls += 1
            if is_now:
                self._then()
            return function(*arguments, **more)

        return counted


def no_room():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def save(path, value, step, **how):
    """A checkpoint of two ranks with this value everywhere."""
    return save_boxes(
        path, {"model/a": (numpy.full(SHAPE, value, "float32"), rows(SHAPE, 2))}, step, **how
    )


def newest(path):
    """(step, the value that is everywhere, why others were skipped) of the newest valid checkpoint,
    as a load finds it.
    """

    def on_rank(backend):
        part = owned_part("model/a", numpy.zeros(SHAPE, "float32"), Box.whole(SHAPE))
        candidates = Candidates.at(path)
        checkpoint, _ = candidates.first_good(
            backend, lambda found, fit: found.read_verified([part], backend)
        )
        assert len(set(part[2].tolist())) == 1
        return checkpoint.manifest["step"], part[2][0], candidates.skipped

    results = sk.run_ranks(2, on_rank)
    assert results[0] == results[1]
    return results[0]


def names(path):
    return sorted(p.name for p in path.iterdir())


# the step that is saved, and up to how many ranks the manifest lists boxes
SAVES = pytest.mark.parametrize("step, listed", [(1, 64), (2, 64), (2, 0)])


@SAVES
@pytest.mark.thorough
def test_a_full_disk_at_any_moment_is_an_error_on_all_ranks_and_the_checkpoint_before_opens(
    step, listed, tmp_path, monkeypatch
):
    """step 1 is saved again, step 2 is a new one; the disk fills up at the first write, at the
    second, ... at the last.
    """
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", listed)
    save(tmp_path, 1.0, 1)
    outcomes = set()
    for at in range(100):
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = Disk(monkeypatch, at, no_room)
            try:
                save(tmp_path, 2.0, step)
                failed = False
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failed = True
        assert newest(tmp_path)[:2] in ((1, 1.0), (step, 2.0))
        assert not list(tmp_path.glob("step-*.tmp")) or not failed
        outcomes.add(failed)
        if at >= disk.num_calls:
            break
        shutil.rmtree(tmp_path)
        save(tmp_path, 1.0, 1)
    assert disk.num_calls > 12 and outcomes == {True, False}
    assert newest(tmp_path)[:2] == (step, 2.0)


def save_and_die(folder, step, at):
    with pytest.MonkeyPatch.context() as monkeypatch:
        Disk(monkeypatch, at, lambda: os._exit(9))
        save(folder, 2.0, step)


@SAVES
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.thorough
def test_a_process_that_dies_at_any_moment_leaves_the_old_checkpoint_or_the_new_one(
    step, listed, every, tmp_path, monkeypatch
):
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", listed)
    found, at, status = set(), 0, 9
    while status == 9:
        shutil.rmtree(tmp_path)
        save(tmp_path, 1.0, 1)
        status, at = exit_code(save_and_die, tmp_path, step, at), at + every
        found_step, value, skipped = newest(tmp_path)
        assert (found_step, value) in ((1, 1.0), (step, 2.0))
        assert all("never finished" in reason for reason in skipped)
        found.add(value)
        save(tmp_path, 3.0, 3, keep=1)
        assert names(tmp_path) == ["newest", "step-00000003"]
    assert status == 0 and at > 12 and found == {1.0, 2.0}


def test_both_names_of_an_interrupted_replacement_are_found_again(tmp_path):
    final = save(tmp_path, 1.0, 1)
    final.rename(tmp_path / "step-00000001.old")
    save(tmp_path / "elsewhere", 2.0, 1).rename(tmp_path / "step-00000001.tmp")
    assert newest(tmp_path) == (1, 2.0, [])
    flip_bit(tmp_path / "step-00000001.tmp" / "rank-00001.h5")
    step, value, skipped = newest(tmp_path)
    assert (step, value) == (1, 1.0) and "rank-00001.h5 is damaged" in skipped[0]
    (tmp_path / "step-00000001.tmp" / "manifest.json").unlink()
    assert newest(tmp_path)[:2] == (1, 1.0)
    save(tmp_path, 5.0, 5)
    assert [folder.name for folder in CheckpointStore(tmp_path).steps()] == [
        "step-00000001",
        "step-00000005",
    ]


def test_the_last_ones_and_every_nth_are_kept(tmp_path):
    for step in range(1, 9):
        save(tmp_path, step, step, keep=2, keep_every=3)
    assert names(tmp_path) == ["newest"] + [f"step-{step:08d}" for step in (3, 6, 7, 8)]


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path):
    for step in (1, 2, 3, 4):
        folder = save(tmp_path, step, step)
        if step in (3, 4):
            (folder / "rank-00000.h5").unlink()
    save(tmp_path, 5, 5, keep=2)
    assert names(tmp_path) == ["newest"] + [f"step-{step:08d}" for step in (2, 3, 4, 5)]


def test_a_job_that_went_back_deletes_neither_what_it_just_wrote_nor_what_is_newer(tmp_path):
    for step in (1, 9):
        save(tmp_path, step, step)
    save(tmp_path, 2, 2, keep=1)
    assert names(tmp_path) == ["newest", "step-00000002", "step-00000009"]


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning_not_a_failed_save(
    tmp_path, monkeypatch
):
    save(tmp_path, 1, 1)

    def refuse(path, **more):
        raise PermissionError(errno.EACCES, "no", str(path))

    with (
        monkeypatch.context() as patch,
        pytest.warns(UserWarning, match=r"stays .*step-00000001.deleted.tmp: no"),
    ):
        patch.setattr(os, "rmdir", refuse)
        save(tmp_path, 2, 2, keep=1)
    assert newest(tmp_path)[:2] == (2, 2)


@pytest.mark.parametrize("keep", [{"keep": 0}, {"keep": 1, "keep_every": 0}, {"keep": -1}])
def test_numbers_of_checkpoints_to_keep_are_at_least_one(keep, tmp_path):
    with pytest.raises(sk.CheckpointError, match="at least 1"):
        save(tmp_path, 1, 1, **keep)
    assert not tmp_path.exists() or not names(tmp_path)


def test_a_folder_that_vanishes_during_the_save_is_an_error_on_all_ranks(tmp_path, monkeypatch):
    store = tmp_path / "store"
    write = rank_file.RankFile.write

    def vanish(self, *arguments, **more):
        shutil.rmtree(store, ignore_errors=True)
        write(self, *arguments, **more)

    monkeypatch.setattr(rank_file.RankFile, "write", vanish)
    with pytest.raises(
        (FileNotFoundError, sk.CheckpointError), match="[Nn]o such file"
    ):  # a rank may be reading its own back
        save(store, 1, 1)
    monkeypatch.undo()
    save(store, 2, 2)
    assert newest(store)[:2] == (2, 2)


def test_a_folder_that_not_all_ranks_share_is_named(tmp_path, monkeypatch):
    write = rank_file.RankFile.write

    def elsewhere(self, *arguments, **more):
        write(self, *arguments, **more)
        if self._backend.rank == 1:
            self._path.rename(tmp_path / "on another node")

    monkeypatch.setattr(rank_file.RankFile, "write", elsewhere)
    with pytest.raises(sk.CheckpointError, match="rank-00001.h5.*all ranks share"):
        save(tmp_path, 1, 1)
    assert names(tmp_path) == ["on another node"]


def test_bytes_that_are_not_in_the_file_as_they_were_written_are_found(tmp_path, monkeypatch):
    save(tmp_path, 1, 1)
    value, write = numpy.float32(2).tobytes() * 600, os.pwrite

    def one_bit_less(descriptor, view, at):
        return write(
            descriptor, bytes([view[0] ^ 1]) + view[1:] if bytes(view) == value else view, at
        )

    monkeypatch.setattr(os, "pwrite", one_bit_less)
    with pytest.raises(sk.CheckpointError, match="are not what was written there"):
        save(tmp_path, 2, 2)
    assert newest(tmp_path)[:2] == (1, 1) and not list(tmp_path.glob("*.tmp"))


def test_the_disk_begins_while_the_rest_is_still_written(tmp_path, monkeypatch):
    path, calls = tmp_path / "file", []
    path.write_bytes(bytes(4 << 20))
    for name, note in (
        ("pwrite", lambda _, view, at: (at, at + len(view))),
        ("fsync", lambda _: ()),
        ("posix_fadvise", lambda _, at, size, advice: (at, at + size)),
    ):

        def noted(*arguments, name=name, note=note, work=getattr(os, name)):
            calls.append((name, *note(*arguments)))
            return work(*arguments)

        monkeypatch.setattr(os, name, noted)
    monkeypatch.setattr(files, "EARLY_BYTES", 2 << 20)
    files.write_arrays(
        path, [(0, numpy.ones(3 << 18, "float32")), (3 << 20, numpy.ones(1 << 18, "float32"))]
    )
    written = [(at << 20, at + 1 << 20) for at in range(4)]
    assert calls == [
        ("pwrite", *written[0]),
        ("pwrite", *written[1]),
        ("posix_fadvise", 0, 2 << 20),
        ("pwrite", *written[2]),
        ("pwrite", *written[3]),
        ("posix_fadvise", 2 << 20, 4 << 20),
        ("fsync",),
    ]


def test_two_owners_of_one_box_are_found_before_anything_gets_its_name(tmp_path):
    twice = [[Box.whole(SHAPE)], [Box((0, 0), (1, 1))]]
    with pytest.raises(sk.CheckpointError, match="covered 2 times"):
        save_boxes(tmp_path, {"model/a": (numpy.zeros(SHAPE, "float32"), twice)})
    assert names(tmp_path) == ["newest"] or not names(tmp_path)


def test_what_json_cannot_say_is_refused_before_anything_is_written(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        with pytest.raises(sk.CheckpointError, match="cannot be stored"):
            model.save_model(tmp_path, data_position={"loss": float("nan")})

    sk.run_ranks(2, on_rank)
    assert not names(tmp_path)


def test_a_loss_that_is_not_a_number_does_not_prevent_the_checkpoint(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        parts_of(model).history.last_loss = float("nan")
        model.save_model(tmp_path)
        return model.load_model(tmp_path)["last_loss"]

    assert sk.run_ranks(2, on_rank) == [None, None]


# ---- real file systems ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte, or a skip."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
        )
        if os.geteuid() == 0 and shutil.which("mount")
        else None
    )
    if mounted is None or mounted.returncode:
        pytest.skip(
            "a tmpfs cannot be mounted here"
            + (f": {mounted.stderr}" if mounted else ", which takes root")
        )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("way", ["save_model", "save_model_async"])
def test_a_disk_that_is_really_full_leaves_the_checkpoint_before(small_disk, way):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1, model=small_gpt(width=32))
        saved = []
        for step in range(1, 20):
            try:
                result = getattr(model, way)(small_disk)
                saved.append(Path(result if way == "save_model" else result.wait()).name)
            except OSError as error:
                assert error.errno == errno.ENOSPC and "keep fewer" in str(error), error
                assert ".tmp" in error.filename, error
                return saved
            model.train(*sk.split_batch(model.mesh, *token_batch(step)))

    saved, other = sk.run_ranks(2, on_rank)
    assert saved == other and saved
    assert [folder.name for folder in CheckpointStore(small_disk).steps()] == saved
    for folder in CheckpointStore(small_disk).steps():
        Checkpoint(folder).verify()
    assert not list(small_disk.glob("step-*.tmp"))


def test_a_read_only_file_system_is_an_os_error_and_can_be_loaded_from(small_disk):
    save(small_disk, 1, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OSError) as caught:
        save(small_disk, 2, 2)
    assert caught.value.errno == errno.EROFS
    assert newest(small_disk)[:2] == (1, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_permission_error(tmp_path):
    save(tmp_path, 1, 1)
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        save(tmp_path, 2, 2)
    tmp_path.chmod(0o700)
    assert newest(tmp_path)[:2] == (1, 1)


def save_within_quota(folder):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    whole = numpy.zeros(1 << 20, "float32")
    try:
        save_boxes(folder, {"model/a": (whole, rows(whole.shape, 2))}, 2)
    except OSError as error:
        os._exit(7 if error.errno == errno.EFBIG else 8)


def test_a_quota_on_file_sizes_is_an_os_error(tmp_path):
    save(tmp_path, 1, 1)
    assert exit_code(save_within_quota, tmp_path) == 7
    assert newest(tmp_path)[:2] == (1, 1) and not list(tmp_path.glob("*.tmp"))


def test_why_others_were_passed_over_is_told(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, step)
    flip_bit(tmp_path / "step-00000004" / "index.h5")
    edit_manifest(
        tmp_path / "step-00000003", lambda manifest: manifest.update(step=4), sealed=False
    )
    (tmp_path / "step-00000002" / "rank-00001.h5").unlink()
    (tmp_path / "step-00000005.tmp").mkdir()
    step, _, reasons = newest(tmp_path)
    assert step == 1
    for words, reason in zip(
        (
            "step-00000005.tmp was never finished",
            "index.h5 is damaged",
            "step-00000003 is damaged: its checksum",
            "rank-00001.h5 cannot be read",
        ),
        reasons,
        strict=True,
    ):
        assert words in reason


@pytest.mark.parametrize(
    "description", [described(-1), described(1, last_loss="low"), described(1, mesh=[1])]
)
def test_a_description_that_could_not_be_read_is_not_written(description, tmp_path):
    def on_rank(backend):
        with pytest.raises(sk.CheckpointError, match="wanted"):
            CheckpointStore(tmp_path).save([], backend, description)

    sk.run_ranks(2, on_rank)
    assert not names(tmp_path)
