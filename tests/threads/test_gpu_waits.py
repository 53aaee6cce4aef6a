"""Waits of the host for a GPU that waits for other ranks, on the stand-ins for CuPy and NCCL: each
is noted as a call, and ends where a rank does not come.
"""

import threading

import numpy
import pytest
from builders import small_gpt, token_batch, train
from gpu_verbs import plain_twins  # noqa: F401
from hybrids import hybrid
from stand_in import fake_nccl, pretended_gpu

import shardkit as sk
from shardkit import CommunicationError, run_ranks
from shardkit.testing.array import registry, to_host, waits
from shardkit.testing.comm import Progress
from shardkit.testing.gpu import gpu_calls, open_nccl

TWINS = ("vocabulary.py", "kernels.py")  # of plain kernels, which ask the GPU; CUDA's do not


@pytest.fixture(autouse=True)
def plain_masks(monkeypatch):
    masks = registry.KERNELS["dropout_mask"]
    monkeypatch.setattr(masks, "cuda", masks.reference)


def on_gpus(num_ranks, work, **limits):
    """The results of work(backend, cupy) on ranks with NCCL, and where waits were not watched."""

    def run(backend):
        import cupy

        return work(backend, cupy)

    with pretended_gpu(num_devices=num_ranks), fake_nccl.installed():
        results = run_ranks(num_ranks, run, **{"timeout": 500, **limits})
        return results, [place for place in fake_nccl.unwatched if not place.startswith(TWINS)]


# ---- every wait is of this kind ------------------------------------------------------------------


def _trained(strategy, **settings):
    def use(backend, folder):
        model, _ = train(
            strategy, backend, 2, device="cuda", gpu_transport="nccl", micro_batch=3, **settings
        )
        model.gather_full_parameters()
        model.mesh.close()

    return use


def _meshed(mesh, **settings):
    def use(backend, folder):
        model = hybrid(
            backend,
            mesh,
            "fsdp",
            device="cuda",
            gpu_transport="nccl",
            model=small_gpt(),
            **settings,
        )
        for step in range(2):
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 8)))
        model.close()

    return use


def _saved(how):
    def use(backend, folder):
        model, _ = train("FSDP", backend, 1, device="cuda", gpu_transport="nccl", micro_batch=3)
        for step in range(2):
            how(model, folder / "run")
            model.train(*sk.split_batch(model.mesh, *token_batch(step, 12)))
        model.load_model(str(folder / "run"))
        model.close()

    return use


def _asked(backend, folder):
    model, _ = train("FSDP", backend, 1, device="cuda", gpu_transport="nccl", micro_batch=3)
    x, y = sk.split_batch(model.mesh, *token_batch(3, 12))
    model.evaluate(x, y)
    model.predict(x)
    model.generate(numpy.zeros((1, 4), "int64"), 2)
    model.close()


class Normed(sk.nn.Module):
    """A net with running means, whose weight is 1 / the number of steps."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = sk.nn.Linear(6, 8), sk.nn.BatchNorm1d(8, momentum=None)
        self.last = sk.nn.Linear(8, 3)

    def __call__(self, x):
        return self.last(sk.nn.ops.relu(self.norm(self.first(x))))


def _observed(backend, folder):
    config = sk.ShardingConfiguration(
        backend, device="cuda", gpu_transport="nccl", loss=sk.nn.CrossEntropyLoss()
    )
    model = sk.DDPModel(Normed(), config)
    rng = numpy.random.default_rng(backend.rank)
    for _ in range(2):
        model.train(rng.normal(size=(4, 6)).astype("float32"), rng.integers(0, 3, 4))
    model.close()


USES = {
    "DDP": _trained("DDP"),
    "ZeRO-1 clipped": _trained("ZeRO-1", max_gradient_norm=1.0),
    "ZeRO-2 in NCCL's order": _trained("ZeRO-2", deterministic=False),
    "FSDP clipped": _trained("FSDP", max_gradient_norm=1.0),
    "FSDP in halves": _trained("FSDP", compute_dtype="float16"),
    "pipeline": _meshed((2, 1, 1)),
    "tensor": _meshed((1, 1, 2), max_gradient_norm=1.0),
    "saved": _saved(lambda model, folder: model.save_model(str(folder))),
    "saved beside": _saved(lambda model, folder: model.save_model_async(str(folder))),
    "asked": _asked,
    "running means": _observed,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.thorough(but=2)
def test_the_host_never_waits_for_other_ranks_in_a_way_that_has_no_end(use, tmp_path):
    _, unwatched = on_gpus(2, lambda backend, cupy: USES[use](backend, tmp_path))
    assert not unwatched


def _by_get(cupy, array):
    array.get()


def _by_event(cupy, array):
    cupy.cuda.get_current_stream().record().synchronize()


def _by_item(cupy, array):
    float(array[0])


@pytest.mark.parametrize("wait", [_by_get, _by_event, _by_item])
def test_a_wait_that_goes_by_the_door_is_found_by_the_stand_in(wait):
    def work(backend, cupy):
        open_nccl(backend, [backend], fixed_order=True)
        array = cupy.ones(4)
        backend.all_reduce(array)
        wait(cupy, array)

    _, unwatched = on_gpus(2, work)
    assert unwatched and all(place.startswith("test_gpu_waits.py") for place in unwatched)


# ---- noted ---------------------------------------------------------------------------------------


def test_the_wait_is_a_call_in_the_place_of_the_oldest_that_is_not_done():
    come, seen = threading.Event(), []

    def work(backend, cupy):
        open_nccl(backend, [backend], fixed_order=False, axes={backend.group_key: "data"})
        array = cupy.ones(3_100_000, "float32")
        backend.all_reduce(array)  # so that both have connected
        to_host(array)
        first = backend.progress.num_calls(backend.group_key) + 1
        if backend.rank == 0:
            backend.all_reduce(array)
            backend.broadcast(array)
            threading.Thread(target=look, args=(backend.progress,)).start()
            to_host(array)
            assert backend.progress.current is None
        else:
            assert come.wait(60)
            backend.all_reduce(array)
            backend.broadcast(array)
            to_host(array)
        return first

    def look(progress):
        while progress.current is None:
            pass
        seen.append((progress.current, progress.gpu.oldest()[0]))
        come.set()

    (first, _), unwatched = on_gpus(2, work)
    noted, oldest = seen[0]
    assert not unwatched
    assert str(noted) == (
        f"wait for the GPU; last NCCL call {first + 1}, broadcast of 3.1 M on data "
        f"(call {first} on group world)"
    )
    assert (oldest.verb, oldest.number) == ("all_reduce", first)


def test_a_wait_in_the_midst_of_a_verb_gives_it_back():
    class Book:
        """Stands in the place of a ledger."""

        is_written_by_loops, lines = False, []

        def begin(self, verb, group, ranks, number, dtype=None, count=-1, site=None):
            self.lines.append(f"begin {verb} {number}")

        def describe(self, dtype, count):
            """Nothing."""

        def end(self):
            self.lines.append("end")

        def fail(self):
            self.lines.append("fail")

    progress = Progress()
    progress.ledger = Book()
    progress.begin_collective("all_gather", "world", (0, 1), site=0)
    earlier = progress.current
    progress.end()
    progress.begin_collective("broadcast", "world", (0, 1), site=0)
    outer, began = progress.current, progress.began
    asked = gpu_calls.Asked(earlier, None, 3, "data", None)
    with gpu_calls.meanwhile(progress, asked, f"wait for the GPU; last NCCL call {asked}", 0):
        assert progress.current.number == 1
    assert progress.current is outer and progress.began >= began
    progress.end()
    assert Book.lines == [
        *("begin all_gather 1", "end", "begin broadcast 2", "end"),
        *("begin wait for the GPU, in all_gather 1", "end", "begin wait for broadcast 2", "end"),
    ]


# ---- ended ---------------------------------------------------------------------------------------


def waiting_in_vain(other, *, limit=2.0):
    """The error of rank 0, which waits for rank 1, which does other(backend, event at the end)."""
    words, over = [], threading.Event()

    def work(backend, cupy):
        open_nccl(backend, [backend], fixed_order=False, axes={backend.group_key: "data"})
        array = cupy.ones(1000, "float32")
        backend.barrier()
        backend.timeout = limit
        if backend.rank == 1:
            return other(backend, over)
        transport = backend.gpu_transport
        with pytest.raises(CommunicationError) as caught:
            backend.all_reduce(array)
            to_host(array)
        words.append(str(caught.value))
        over.set()
        assert transport._communicator.is_aborted and backend.progress.current is None
        with pytest.raises(CommunicationError, match="will never be there"):
            to_host(array)  # and at once
        raise caught.value

    with pytest.raises((CommunicationError, RuntimeError)):
        on_gpus(2, work)
    return words[0]


@pytest.mark.thorough
def test_a_rank_that_does_not_come_is_named_after_the_limit():
    words = waiting_in_vain(lambda backend, over: over.wait(60))
    assert "wait for the GPU; last NCCL call" in words and "all_reduce of 1 k on data" in words
    assert "rank 1 did not come within 2 s" in words


def test_a_rank_that_fails_wakes_the_one_that_waits_for_the_gpu():
    def fail(backend, over):
        raise RuntimeError("lost in its own code")

    words = waiting_in_vain(fail, limit=500)
    assert "rank 1 failed: RuntimeError: lost in its own code" in words


def test_a_rank_that_leaves_wakes_the_one_that_waits_for_the_gpu():
    words = waiting_in_vain(lambda backend, over: None, limit=500)
    assert "rank 1 returned or shut down without taking part" in words


def test_what_nccl_hears_of_other_ranks_ends_the_wait():
    def abort(backend, over):
        backend.gpu_transport._communicator.abort()
        over.wait(60)

    words = waiting_in_vain(abort, limit=500)
    assert "NCCL says: NCCL_ERROR_REMOTE_ERROR" in words and "NCCL_DEBUG=WARN" in words


def test_another_thread_that_waits_for_a_copy_ends_with_the_communicator():
    errors = []

    def work(backend, cupy):
        open_nccl(backend, [backend], fixed_order=False)
        array = cupy.ones(1000, "float32")
        backend.barrier()
        if backend.rank == 1:
            return backend.barrier()
        backend.all_reduce(array)
        end, watch = cupy.cuda.get_current_stream().record(), waits.own_watch()

        def wait():
            try:
                waits.await_event(end, watch)
            except CommunicationError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        backend.progress.gpu.abort()
        thread.join(60)
        backend.barrier()
        assert not thread.is_alive()

    on_gpus(2, work)
    assert len(errors) <= 1 and all("will never be there" in error for error in errors)


def test_a_thread_is_watched_as_long_as_a_communicator_is_open():
    def work(backend, cupy):
        watches = [waits.own_watch()]
        groups = [backend.split(0), backend.split(0)]
        open_nccl(backend, groups, fixed_order=True)
        watches.append(waits.own_watch())
        groups[0].close()
        watches.append(waits.own_watch())
        groups[1].close()
        watches.append(waits.own_watch())
        return [watch is not None for watch in watches], backend.progress.gpu.calls

    results, _ = on_gpus(2, work)
    assert results == [([False, True, True, False], None)] * 2


def test_cuda_that_does_not_answer_keeps_nobody_from_asking_what_the_gpu_waits_for():
    answer = threading.Event()

    class Busy:
        """An event that CUDA says nothing about while it is busy in another thread."""

        @property
        def done(self):
            return answer.wait(60)

    def work(backend, cupy):
        open_nccl(backend, [backend], fixed_order=False)
        backend.all_reduce(cupy.ones(4))
        call, calls = backend.progress.current, backend.progress.gpu.calls
        assert call is None
        calls.clear(None)
        with backend.verb("all_reduce"):
            calls.note(cupy.ones(4), "data", Busy())
            call = backend.progress.current
        asked = [calls.oldest(), calls.oldest()]
        backend.barrier()
        answer.set()
        while calls.oldest() is not None:
            pass
        return [each is call for each in asked]

    assert on_gpus(2, work)[0] == [[True, True]] * 2
