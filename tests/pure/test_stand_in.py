"""The stand-in for CuPy: it has no name or parameter that CuPy has not, and forgives nothing that
CuPy does not forgive.
"""

import importlib.util
import inspect
import re

import numpy
import pytest
import stand_in.cupy as stand_in
from stand_in import pretended_gpu

NOT_OF_THE_CLASS = {"of", "ptr"}  # a constructor of ours, and what CuPy sets on each object


@pytest.fixture
def machine():
    with pretended_gpu() as machine:
        yield machine


# ---- against CuPy itself -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cupy():
    """The real one; no GPU and no driver needed to look at it."""
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    import cupy

    return cupy


def public(thing):
    return {name: getattr(thing, name) for name in dir(thing) if not name.startswith("_")}


def parameters_of(function):
    """[(name, has a default)], of a function in Python or (from the first line of its docstring) in
    Cython; None: not told.
    """
    try:
        told = [p for p in inspect.signature(function).parameters.values()]
        return [
            (p.name, p.default is not p.empty)
            for p in told
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):
        line = (function.__doc__ or "").split("\n")[0]
    inside = re.fullmatch(r"[\w.]+\((.*)\)( -> .*)?", line)
    if inside is None:
        return None
    parts = [part.strip() for part in inside[1].split(",")]
    return [
        (part.split("=")[0].split()[-1], "=" in part)
        for part in parts
        if part and not part.startswith(("*", "\\*"))
    ]


def check_same_parameters(where, ours, theirs):
    mine, real = parameters_of(ours), parameters_of(theirs)
    if mine is None or real is None:
        return 0
    mine, real = [[entry for entry in entries if entry[0] != "self"] for entries in (mine, real)]
    assert mine == real[: len(mine)], f"{where}: the stand-in takes {mine}, CuPy {real}"
    assert all(has_default for _, has_default in real[len(mine) :]), f"{where}: CuPy wants {real}"
    return 1


@pytest.mark.parametrize("module", ["", "cuda", "cuda.runtime", "cuda.memory", "cuda.stream"])
def test_every_name_and_parameter_of_the_stand_in_is_one_of_cupy(cupy, module):
    ours, theirs = stand_in, cupy
    for part in module.split(".") if module else []:
        ours, theirs = getattr(ours, part), getattr(theirs, part)
    compared = 0
    for name, thing in public(ours).items():
        if (
            inspect.ismodule(thing)
            and not thing.__name__.startswith("stand_in.cupy.")
            or name in HELPERS
        ):
            continue
        assert hasattr(theirs, name), f"cupy.{module} has no {name}"
        if inspect.isclass(thing):
            compared += check_class(name, thing, getattr(theirs, name))
        elif inspect.isfunction(thing):
            compared += check_same_parameters(f"{module}.{name}", thing, getattr(theirs, name))
        elif isinstance(thing, int):
            assert thing == getattr(theirs, name), name
    assert (
        compared
        >= {"": 40, "cuda": 25, "cuda.runtime": 25, "cuda.memory": 5, "cuda.stream": 10}[module]
    )


# What the modules of the stand-in use themselves, or have under a name of their own.
HELPERS = {
    "FUNCTIONS",
    "machine",
    "numpy",
    "ctypes",
    "Queue",
    "itertools",
    "time",
    "points",
    "pool",
    "wait_for",
    "Point",
    "memory",
    "streams",
    "PinnedMemory",
    "Lease",
    "Capture",
    "Held",
    "contextmanager",
    "graph",
    "cublas",
    "cublaslt",
}  # CuPy cannot show its own without CUDA's libraries


def check_class(name, ours, theirs):
    """The number of methods that were compared. Every public attribute of an object of ours is one
    of theirs.
    """
    compared = 0
    for method, thing in public(ours).items():
        if method in NOT_OF_THE_CLASS:
            continue
        assert hasattr(theirs, method), f"cupy's {name} has no {method}"
        if inspect.isfunction(thing):
            compared += check_same_parameters(f"{name}.{method}", thing, getattr(theirs, method))
    if name not in ("ndarray", "CUDARuntimeError", "PointerAttributes", "OutOfMemoryError"):
        told = [
            p
            for p in [parameters_of(theirs.__init__), parameters_of(theirs)]
            if p and p[-1][0] not in ("kwargs", "args")
        ]
        mine = [entry for entry in parameters_of(ours.__init__) if entry[0] != "self"]
        assert not told or mine in [[entry for entry in p if entry[0] != "self"] for p in told], (
            name,
            mine,
            told,
        )
    return compared


def test_a_driver_that_is_missing_is_the_error_that_the_door_expects(cupy):
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        assert isinstance(error, RuntimeError) and error.status in (35, 100)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert issubclass(stand_in.cuda.memory.OutOfMemoryError, MemoryError)


def test_the_functions_of_cublas_are_those_of_the_library_that_cupy_is_linked_with(cupy):
    from shardkit.testing.gpu import _PROTOTYPES, cublaslt, library_of

    try:
        cupy.cuda.cublas.getVersion
    except ImportError:
        pytest.skip("there is no cuBLAS")
    library = library_of(cupy)
    for name in (*_PROTOTYPES, *cublaslt._PROTOTYPES):
        assert hasattr(library, name) and hasattr(stand_in.cuda.cublas, name), name


# ---- what it forgives ----------------------------------------------------------------------------

MIXTURES = {
    "asarray": lambda x, host: numpy.asarray(x),
    "array": lambda x, host: numpy.array([x, x]),
    "right operand": lambda x, host: x + host,
    "left operand": lambda x, host: host * x,
    "in place": lambda x, host: x.__iadd__(host),
    "assignment": lambda x, host: x.__setitem__(slice(None), host),
    "assignment into a host array": lambda x, host: host.__setitem__(slice(None), x),
    "index": lambda x, host: x[numpy.array([0, 1])],
    "ufunc": lambda x, host: numpy.add(host, x),
    "out": lambda x, host: stand_in.exp(x, out=host),
    "host ufunc": lambda x, host: stand_in.exp(host),
    "concatenate": lambda x, host: stand_in.concatenate([x, host]),
    "where": lambda x, host: stand_in.where(host > 0, x, x),
    "matmul": lambda x, host: stand_in.matmul(x, host),
    "take": lambda x, host: stand_in.take(x, numpy.array([0])),
    "copyto": lambda x, host: stand_in.copyto(x, host),
    "sum": lambda x, host: stand_in.sum(host),
    "fill": lambda x, host: x.fill(host),
}


@pytest.mark.parametrize("how", MIXTURES)
def test_arrays_of_numpy_and_of_the_gpu_never_meet(machine, how):
    x, host = stand_in.arange(3.0), numpy.arange(3.0)
    with pytest.raises((TypeError, ValueError)):
        MIXTURES[how](x, host)
    assert not machine.transfers


def test_numbers_go_with_arrays_of_the_gpu(machine):
    x = stand_in.arange(3, dtype="float32")
    y = (2 * x + 1.0 - numpy.float32(1)) / 2
    x[0] = numpy.float64(7)
    assert y.dtype == "float32" and not machine.transfers
    assert y.get().tolist() == [0, 1, 2] and x.get().tolist() == [7, 1, 2]


COUNTED = {
    "get": lambda x: x.get(),
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[1]),
    "int": lambda x: int(x.sum()),
    "bool": lambda x: bool(x[0]),
    "max of a list": lambda x: max(x[0], x[1]),
    "tolist": lambda x: x.tolist(),
    "repr": repr,
    "format": lambda x: f"{x[0]}",
    "asnumpy": lambda x: stand_in.asnumpy(x),
    "mask": lambda x: x[x > 0],
    "flatnonzero": lambda x: stand_in.flatnonzero(x),
    "asarray": lambda x: stand_in.asarray([1.0]),
    "set": lambda x: x.set(numpy.zeros(3)),
}


@pytest.mark.parametrize("how", COUNTED)
def test_each_copy_between_host_and_gpu_is_counted_with_its_place(machine, how):
    x = stand_in.arange(3.0)
    COUNTED[how](x)
    assert len(machine.transfers) == 1
    assert machine.transfers[0].place.startswith("test_stand_in.py:")


def test_views_share_memory_and_what_is_not_filled_is_nan(machine):
    x = stand_in.zeros((2, 3))
    x.T[1] = 5
    x.reshape(-1)[2:4] += 1
    assert x.get().tolist() == [[0, 5, 1], [1, 5, 0]]
    assert x[1:].base is x and x.reshape(-1)[1:].base is x and x.copy().base is None
    assert (
        numpy.isnan(stand_in.empty(4).get()).all()
        and numpy.isnan(stand_in.empty_like(x).get()).all()
    )


def test_memory_is_counted_until_the_last_view_is_gone_and_runs_out():
    with pretended_gpu(capacity_bytes=1 << 20) as machine:
        pool = stand_in.get_default_memory_pool()
        before = pool.used_bytes()
        view = stand_in.zeros(1000)[3:4]
        assert pool.used_bytes() - before == 8192  # 8000, rounded up to 512
        del view
        assert pool.used_bytes() == before and pool.total_bytes() >= before + 8192
        with pytest.raises(
            stand_in.cuda.memory.OutOfMemoryError, match="Out of memory allocating 2,097,152 bytes"
        ):
            stand_in.empty(1 << 21, "uint8")
        assert not machine.mistakes


def page_locked(count):
    return numpy.ndarray((count,), "float64", buffer=stand_in.cuda.alloc_pinned_memory(8 * count))


def copy_later(x, host, stream):
    runtime = stand_in.cuda.runtime
    runtime.memcpyAsync(
        host.ctypes.data, x.data.ptr, x.nbytes, runtime.memcpyDeviceToHost, stream.ptr
    )


def test_a_copy_on_a_stream_has_happened_when_it_was_waited_for_and_not_before(machine):
    x, host, stream = stand_in.arange(3.0), page_locked(3), stand_in.cuda.Stream(non_blocking=True)
    stream.wait_event(stand_in.cuda.get_current_stream().record())
    copy_later(x, host, stream)
    done = stream.record()
    assert numpy.isnan(host).all() and not done.done
    done.synchronize()
    assert host.tolist() == [0, 1, 2] and done.done


def test_a_copy_that_did_not_wait_for_the_work_before_is_found(machine):
    x, host, stream = stand_in.arange(3.0), page_locked(3), stand_in.cuda.Stream(non_blocking=True)
    with pytest.raises(RuntimeError, match="has not waited"):
        copy_later(x, host, stream)
    machine.mistakes.clear()
    stand_in.cuda.get_current_stream().synchronize()
    copy_later(x, host, stream)
    with pytest.raises(RuntimeError, match="not page-locked"):
        copy_later(x, numpy.zeros(3), stream)
    stream.synchronize()
    machine.mistakes.clear()


def test_memory_that_is_given_back_during_a_copy_is_found(machine):
    x, host, stream = stand_in.arange(3.0), page_locked(3), stand_in.cuda.Stream(non_blocking=True)
    stream.wait_event(stand_in.cuda.get_current_stream().record())
    copy_later(x, host, stream)
    del x
    assert "given back" in machine.mistakes.pop()
    stream.synchronize()


def test_memory_may_be_given_back_during_a_copy_on_its_own_stream(machine):
    """What gets it next comes later on that stream."""
    host = page_locked(3)
    x, stream = stand_in.arange(3.0), stand_in.cuda.get_current_stream()
    copy_later(x, host, stream)
    assert numpy.isnan(host).all()
    del x
    assert not machine.mistakes and host.tolist() == [0, 1, 2]


OVERWRITING = {
    "setitem": lambda x: x.__setitem__(0, 7),
    "fill": lambda x: x.fill(7),
    "in place": lambda x: x.__iadd__(1),
    "out": lambda x: stand_in.exp(x, out=x),
    "copyto": lambda x: stand_in.copyto(x, stand_in.ones(3)),
}


@pytest.mark.parametrize("how", OVERWRITING)
def test_an_array_that_is_overwritten_during_a_copy_of_it_is_found(machine, how):
    x, host, stream = stand_in.arange(3.0), page_locked(3), stand_in.cuda.Stream(non_blocking=True)
    stream.wait_event(stand_in.cuda.get_current_stream().record())
    copy_later(x, host, stream)
    with pytest.raises(RuntimeError, match="overwritten while a copy"):
        OVERWRITING[how](x)
    machine.mistakes.clear()
    stand_in.cuda.get_current_stream().wait_event(stream.record())
    OVERWRITING[how](x)
    assert host.tolist() == [0, 1, 2]


READING = {
    "operand": lambda x: x + 1,
    "index": lambda x: stand_in.arange(9.0)[x],
    "product": lambda x: x.reshape(1, 3) @ x,
    "get": lambda x: x.get(),
}


@pytest.mark.parametrize("how", READING)
def test_work_that_does_not_wait_for_what_another_stream_writes_is_found(machine, how):
    stream = stand_in.cuda.Stream(non_blocking=True)
    with stream:
        x = stand_in.arange(3)
    with pytest.raises(RuntimeError, match="has not waited"):
        READING[how](x)
    machine.mistakes.clear()
    stand_in.cuda.get_current_stream().wait_event(stream.record())
    READING[how](x)


def test_waits_of_the_host_and_launches_are_counted(machine):
    x = stand_in.arange(3.0)
    machine.forget()
    y = stand_in.exp(x) + 1
    stream = stand_in.cuda.get_current_stream()
    event = stream.record()
    stand_in.cuda.Stream(non_blocking=True).wait_event(event)
    assert machine.launches == {"exp": 1, "add": 1} and not machine.host_waits
    event.synchronize(), stream.synchronize(), y.get(), float(y[0]), y.argsort()
    stand_in.cuda.runtime.deviceSynchronize()
    assert len(machine.host_waits) == 6
    assert all(place.startswith("test_stand_in.py:") for place, _ in machine.host_waits)


def test_a_wrong_kind_or_a_copy_beyond_the_end_is_an_error(machine):
    runtime, x, host = stand_in.cuda.runtime, stand_in.arange(3.0), numpy.zeros(3)
    with pytest.raises(runtime.CUDARuntimeError, match="InvalidValue"):
        runtime.memcpy(host.ctypes.data, x.data.ptr, 24, runtime.memcpyHostToDevice)
    with pytest.raises(RuntimeError, match="bytes from byte"):
        runtime.memcpy(host.ctypes.data, x.data.ptr, 32, runtime.memcpyDeviceToHost)
    machine.mistakes.clear()


def test_an_array_of_another_gpu_is_refused():
    with pretended_gpu(num_devices=2):
        x = stand_in.arange(3.0)
        with stand_in.cuda.Device(1):
            with pytest.raises(ValueError, match="array device = 0 while current = 1"):
                x + 1
        assert (x + 1).sum().item() == 6


# ---- graphs --------------------------------------------------------------------------------------


@pytest.fixture
def capturing(machine):
    """capturing(function, *args) -> (what it returns, the graph), with memory of a pool of its
    own.
    """
    stream, pool = stand_in.cuda.Stream(non_blocking=True), stand_in.cuda.MemoryPool()

    def capture(function, *args):
        with stream, stand_in.cuda.using_allocator(pool.malloc):
            stream.begin_capture()
            try:
                result = function(*args)
            finally:
                graph = stream.end_capture()
        return result, graph

    return capture


def test_what_is_captured_is_done_at_each_launch_and_not_before(capturing):
    x = stand_in.zeros(3, "float32")

    def work():
        x.__iadd__(1)
        y = stand_in.exp(x)
        y[1:] = 7
        return y

    y, graph = capturing(work)
    assert x.get().tolist() == [0, 0, 0]
    graph.launch()
    graph.launch()
    assert x.get().tolist() == [2, 2, 2] and y.get().tolist() == [numpy.exp(numpy.float32(2)), 7, 7]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.get(),
        lambda x: float(x[0]),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.argsort(),
        lambda x: stand_in.array([1.0]),
        lambda x: stand_in.cuda.get_current_stream().synchronize(),
    ],
)
def test_what_waits_cannot_be_captured(capturing, work):
    with pytest.raises(RuntimeError, match="cudaErrorStreamCapture|stream is capturing"):
        capturing(work, stand_in.ones(3))
    capturing(stand_in.exp, stand_in.ones(3))  # the stream can capture again


def test_cupys_own_products_cannot_be_captured_and_those_of_integers_can(capturing):
    x = stand_in.ones((2, 2))
    for work in (lambda: x @ x, lambda: stand_in.matmul(x, x)):
        with pytest.raises(NotImplementedError, match="cuBLAS API during stream capture"):
            capturing(work)
    integers = x.astype("int64")
    capturing(lambda: integers @ integers)


def test_a_graph_with_memory_that_others_get_meanwhile_is_a_mistake(machine):
    stream = stand_in.cuda.Stream(non_blocking=True)
    x = stand_in.ones(3)
    with stream, pytest.raises(RuntimeError, match="memory of the pool that all have"):
        stream.begin_capture()
        stand_in.exp(x)
    stream.end_capture()
    machine.mistakes.clear()


def test_the_null_stream_cannot_be_captured(machine):
    with pytest.raises(RuntimeError, match="legacy"):
        stand_in.cuda.Stream.null.begin_capture()
