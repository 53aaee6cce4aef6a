"""Checkpoints of fewer files than ranks: the ranks of a node write some together."""

from pathlib import Path

import h5py
import numpy
import pytest
from builders import sha256, train

import shardkit as sk
from shardkit.testing.checkpoint import Checkpoint, compare, rank_file, saving

HOSTS = ("a", "a", "a", "b")


@pytest.fixture(params=["one host", "two hosts"])
def hosts(request, monkeypatch):
    """The hosts of four ranks."""
    names = HOSTS if request.param == "two hosts" else ("a",) * 4
    place = "shardkit.testing.comm.mesh._agreed_hosts"
    monkeypatch.setattr(place, lambda backend, shape: names[: backend.world_size])
    return names


@pytest.fixture(params=["listed", "tabled"])
def form(request, monkeypatch):
    """How the boxes of a checkpoint are described."""
    monkeypatch.setattr(saving, "MOST_LISTED_RANKS", 0 if request.param == "tabled" else 64)


def save(model, how, folder, **more):
    if how == "at once":
        return model.save_model(folder, **more)
    pending = model.save_model_async(folder, **more)
    if how == "in steps":
        while not pending.poll():
            pass
    return pending.wait()


def num_teams(hosts, per_node):
    return sum(min(per_node, hosts.count(host)) for host in set(hosts))


@pytest.mark.parametrize("how", ["at once", "in the background", "in steps"])
@pytest.mark.parametrize("ranks, per_node", [(1, 1), (2, 1), (3, 2), (4, 1), (4, 2), (4, 9)])
@pytest.mark.thorough(but=2)
def test_it_holds_what_one_of_a_file_for_each_rank_holds(
    ranks, per_node, how, hosts, form, tmp_path
):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        folders = [
            save(model, how, tmp_path / "together", files_per_node=per_node),
            model.save_model(tmp_path / "alone"),
        ]
        other, _ = train("ZeRO-1", backend, 0)
        other.load_model(folders[0])
        bits = [sha256(each.gather_full_parameters()) for each in (model, other)]
        model.close()
        return *folders, *bits

    together, alone, *bits = sk.run_ranks(ranks, on_rank)[-1]
    assert len(set(bits)) == 1
    assert compare(Checkpoint(together), Checkpoint(alone)).is_equal
    files = sorted(file.name for file in Path(together).glob("rank-*.h5"))
    assert len(files) == num_teams(hosts[:ranks], per_node) and files[0] == "rank-00000.h5"
    assert Checkpoint(together).manifest.keys() == Checkpoint(alone).manifest.keys()


def test_the_index_reads_through_to_shared_files(tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        return model.save_model(tmp_path, files_per_node=1), model.gather_full_parameters()

    folder, parameters = sk.run_ranks(3, on_rank)[0]
    with h5py.File(Path(folder) / "index.h5") as index:
        found = []
        index["model"].visititems(
            lambda name, item: isinstance(item, h5py.Dataset) and found.append(item[()].sum())
        )
    numpy.testing.assert_allclose(sum(found), parameters.sum(), rtol=1e-4)


@pytest.mark.parametrize("how", ["at once", "in the background"])
@pytest.mark.parametrize(
    "where, odd", [("lay_out", 0), ("write", 0), ("write", 2), ("add_table", 0)]
)
@pytest.mark.thorough(but=2)
def test_a_disk_that_one_of_them_finds_full_is_an_error_of_all_and_leaves_nothing(
    where, odd, how, form, tmp_path, monkeypatch
):
    real, is_full = getattr(rank_file.RankFile, where), [True]

    def full(self, *arguments):
        if is_full and self._backend.rank == odd and (where != "add_table" or self._has_table):
            raise OSError(28, "No space left on device")
        return real(self, *arguments)

    monkeypatch.setattr(rank_file.RankFile, where, full)
    is_listed = saving.MOST_LISTED_RANKS > 0

    def on_rank(backend):
        model, _ = train("FSDP", backend, 1)
        if where != "add_table" or not is_listed:  # listed ones have no table
            with pytest.raises(OSError, match="No space left"):
                save(model, how, tmp_path, files_per_node=1)
            backend.barrier()
            assert not list(tmp_path.glob("step-*"))
        backend.barrier()
        is_full.clear()
        return save(model, how, tmp_path, files_per_node=1)

    folders = set(sk.run_ranks(3, on_rank))
    assert len(folders) == 1 and not list(tmp_path.glob("*.tmp"))
    Checkpoint(folders.pop()).verify(0, 1)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_a_wrong_number_of_files_is_refused_on_all_ranks(wrong, tmp_path):
    def on_rank(backend):
        model, _ = train("FSDP", backend, 0)
        with pytest.raises(sk.ConfigurationError, match="files_per_node.*at least 1"):
            model.save_model(tmp_path, files_per_node=wrong if backend.rank else 1)
        with pytest.raises(sk.ShardkitError, match="files_per_node"):
            model.save_model(tmp_path, files_per_node=backend.rank + 1)

    sk.run_ranks(2, on_rank)
    assert not list(tmp_path.iterdir())
