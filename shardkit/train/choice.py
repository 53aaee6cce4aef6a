"""parallel.blas = "auto": the library that multiplies this model's matrices in the least time here.

    matrices of the model, rows of a micro-batch --> the three products of each with its weight
        --> seconds by each library that all ranks have --> the one whose slowest rank is fastest

It is measured when a run starts, by all ranks at the same time, and written into the settings of
the run and into its checkpoints: a run that goes on multiplies as it began, with the same bits.
"""

import time
from collections import defaultdict
from math import prod
from pathlib import Path

import numpy

from ..arguments import require
from ..array import products
from ..array.blas import LIBRARIES, Library, library_named
from ..array.device import Device
from ..array.dtypes import dtype_named
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..errors import ConfigurationError
from ..nn.module import Module, blocks_of
from ..parallel.pipeline.balance import multiplied_weights
from ..parallel.step.stopwatch import Product
from ..task.task import Task
from ..tree import leaves
from .settings import AUTOMATIC, RunConfiguration

SECONDS = 0.5  # to be spent on measuring
LARGEST = 2e9  # floating point operations of a product that is measured; rows are left out beyond


def with_blas(task: Task, folder: Path, backend: CommunicationBackend) -> tuple[Task, str]:
    """Return the task with a library in parallel.blas, and a line that says why; "" if it had one.

    Collective. The task is not open then.

    folder   of the run, whose data are prepared
    Errors, on all ranks: those of Task.open and Task.make_model; ConfigurationError on a GPU.
    """
    settings = task.settings
    if settings.parallel.blas != AUTOMATIC:
        return task, ""
    with collectively(backend):
        require(
            settings.parallel.device == "cpu",
            "parallel.blas",
            AUTOMATIC,
            '"numpy": on "cuda" cuBLAS multiplies',
        )
        task.open(folder)
        measured = measured_seconds(products_of_step(task))
    of_ranks = backend.all_gather_object(measured)
    slowest = {
        name: max(seconds[name] for seconds in of_ranks)
        for name in LIBRARIES
        if all(name in seconds for seconds in of_ranks)
    }
    name = min(slowest, key=slowest.__getitem__)
    figures = ", ".join(f"{other} {1e3 * seconds:.3g} ms" for other, seconds in slowest.items())
    with collectively(backend):
        chosen = settings.replace({"parallel.blas": name}).make_task()
    return chosen, f"parallel.blas={name}, the fastest here for a micro-batch's products: {figures}"


def kept_blas(settings: RunConfiguration, backend: CommunicationBackend) -> RunConfiguration:
    """Return the settings with the library that any rank has in them, in place of "auto".

    Collective: a rank that joins later was not there when it was chosen.
    """
    names = backend.all_gather_object(settings.parallel.blas)
    known = [name for name in names if name != AUTOMATIC]
    return settings.replace({"parallel.blas": known[0]}) if known else settings


def products_of_step(task: Task) -> dict[Product, float]:
    """Return products_of_layers() for a micro-batch of this task, which is open."""
    parallel, model = task.settings.parallel, task.make_model()
    dtype = dtype_named(parallel.compute_dtype or str(model.parameters()[0].dtype))
    x, _ = task.example(task.settings.batch.micro_batch)
    return products_of_layers(model, max(map(_num_rows, leaves(x))), str(dtype))


def products_of_layers(model: Module, num_rows: int, dtype: str) -> dict[Product, float]:
    """Return how often each product of a layer with its weight is made for so many rows of input.

    Those of a layer's forward, of the gradient of its input, and of that of its weight; without a
    tensor axis. One that has fewer rows here, since all would take too long, counts as often as it
    takes to make all.
    """
    found: dict[Product, float] = defaultdict(float)
    for weight in [each for _, block in blocks_of(model) for each in multiplied_weights(block)]:
        num_out, num_in = weight.shape[0], prod(weight.shape[1:])
        rows = max(2, min(num_rows, int(LARGEST / (2 * num_out * num_in))))
        plain, transposed = (0, 1), (1, 0)
        for a, order, b, other in (
            ((rows, num_in), plain, (num_in, num_out), transposed),
            ((rows, num_out), plain, (num_out, num_in), plain),
            ((num_out, rows), transposed, (rows, num_in), plain),
        ):
            found[Product(a, order, b, other, dtype)] += num_rows / rows
    return found


def _num_rows(x) -> int:
    """Return the positions of an input: ids, or vectors."""
    shape = numpy.shape(x)
    return prod(shape[:-1] if len(shape) > 1 and x.dtype.kind == "f" else shape)


def measured_seconds(found: dict[Product, float], seconds: float = SECONDS) -> dict[str, float]:
    """Return {name: seconds of all these products} for each library of this node.

    The libraries take turns for so many seconds, at least twice. The fastest turn of each product
    counts, and the first loads and prepares.
    """
    libraries = installed_libraries()
    fastest = {name: dict.fromkeys(found, float("inf")) for name in libraries}
    end, num_turns = time.perf_counter() + seconds, 0
    while num_turns < 2 or found and time.perf_counter() < end:
        for product in found:
            for name, library in libraries.items():
                taken = _seconds_of(product, library)
                fastest[name][product] = min(fastest[name][product], taken)
        num_turns += 1
    return {
        name: sum(count * of_product[product] for product, count in found.items())
        for name, of_product in fastest.items()
    }


def installed_libraries() -> dict[str, Library | None]:
    """Return the libraries that are installed and keep their promise on this CPU."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = library_named(name)
        except ConfigurationError:
            continue
    return found


def _seconds_of(product: Product, library: Library | None) -> float:
    with products.multiplied_by(library):
        return product.seconds_alone(Device("cpu"), repeats=1)
