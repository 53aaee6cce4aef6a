"""parallel.blas = "auto": what is measured, what a run keeps, and what it refuses."""

import time

import numpy
import pytest
from builders import TINY_RUN

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.array import blas
from shardkit.testing.checkpoint import find_checkpoint
from shardkit.testing.parallel import Product
from shardkit.testing.task import Language
from shardkit.testing.train import (
    configuration_of,
    kept_blas,
    measured_seconds,
    products_of_layers,
    products_of_step,
    resumed,
    stored_settings,
    train_run,
)

RunConfiguration = configuration_of(Language)
PLAIN, TRANSPOSED = (0, 1), (1, 0)


class Slow:
    """A library that multiplies as NumPy does, after a while."""

    multiplies_halves = False

    def __init__(self, name, seconds):
        self.name, self._seconds = name, seconds

    def multiply(self, a, b, out):
        time.sleep(self._seconds)
        return False


def missing():
    raise ConfigurationError("it is not installed")


@pytest.fixture
def libraries(monkeypatch):
    """Only these are there; numpy takes its own time and 2 ms."""
    table = {"numpy": lambda: Slow("numpy", 2e-3), "mkl": missing, "onednn": missing}
    for name, load in table.items():
        monkeypatch.setitem(blas.LIBRARIES, name, load)
    return monkeypatch


def settings_of(folder, **changes):
    text = folder / "text.txt"
    text.write_text("".join(f"line {i} with the number {i * i}\n" for i in range(60)))
    given = {"run.folder": str(folder / "run"), "data.path": [str(text)]}
    return RunConfiguration().replace(
        {**TINY_RUN, **given, "parallel.blas": "auto", **changes},
    )


def run(settings, *, resume=False, num_ranks=1):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))[0]


def lines_of(folder):
    return (folder / "run/logs/rank-00000.log").read_text()


def manifest_of(folder):
    return find_checkpoint(folder / "run/checkpoints")[0].manifest


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.thorough(but=1)
def test_the_fastest_is_taken_on_all_ranks_and_written_down(libraries, tmp_path, num_ranks):
    libraries.setitem(blas.LIBRARIES, "onednn", lambda: Slow("quick", 0))
    changes = {"batch.sequences": 6, "batch.micro_batch": 2} if num_ranks == 3 else {}
    run(settings_of(tmp_path, **changes), num_ranks=num_ranks)
    stored = stored_settings(tmp_path / "run").parallel.blas
    assert stored == manifest_of(tmp_path)["blas"] == "onednn"
    assert "parallel.blas=onednn, the fastest here" in lines_of(tmp_path)


@pytest.mark.thorough
def test_a_run_goes_on_with_its_library_though_another_is_faster_by_then(libraries, tmp_path):
    libraries.setitem(blas.LIBRARIES, "onednn", lambda: Slow("slow", 4e-3))
    run(settings_of(tmp_path))
    stored = stored_settings(tmp_path / "run")
    assert stored.parallel.blas == "numpy"
    libraries.setitem(blas.LIBRARIES, "onednn", lambda: Slow("quick", 0))
    longer = {"parallel.blas": "auto", "run.steps": stored.run.steps + 1}
    run(resumed(stored, longer), resume=True)
    assert stored_settings(tmp_path / "run").parallel.blas == "numpy"
    assert "products by parallel.blas" not in lines_of(tmp_path)


@pytest.mark.thorough
def test_a_run_goes_on_with_another_library_only_where_it_is_told_to(libraries, tmp_path):
    libraries.setitem(blas.LIBRARIES, "onednn", lambda: Slow("quick", 0))
    run(settings_of(tmp_path))
    stored = stored_settings(tmp_path / "run")
    longer = {"run.steps": stored.run.steps + 1}
    libraries.setitem(blas.LIBRARIES, "onednn", missing)
    with pytest.raises(ConfigurationError, match="it is not installed"):
        run(resumed(stored, longer), resume=True)
    run(resumed(stored, {"parallel.blas": "numpy", **longer}), resume=True)
    assert stored_settings(tmp_path / "run").parallel.blas == "numpy"
    assert "parallel.blas=numpy from here on, by onednn before" in lines_of(tmp_path)


def test_the_slowest_rank_decides_and_all_must_have_it(libraries, tmp_path, monkeypatch):
    measured = iter(
        [{"numpy": 1.0, "onednn": 0.1, "mkl": 0.1}, {"numpy": 1.0, "onednn": 2.0, "other": 0.1}]
    )
    monkeypatch.setattr(
        "shardkit.testing.train.choice.measured_seconds", lambda products: next(measured)
    )
    run(settings_of(tmp_path), num_ranks=2)
    assert stored_settings(tmp_path / "run").parallel.blas == "numpy"


def test_a_rank_that_joins_later_takes_what_was_chosen(tmp_path):
    settings = settings_of(tmp_path)

    def on_rank(names):
        def kept(backend):
            mine = settings.replace({"parallel.blas": names[backend.rank]})
            return kept_blas(mine, backend).parallel.blas

        return sk.run_ranks(len(names), kept)

    assert on_rank(["auto", "onednn", "auto"]) == ["onednn"] * 3
    assert on_rank(["auto", "auto"]) == ["auto"] * 2


def test_a_gpu_and_a_script_have_no_automatic_choice(tmp_path):
    with pytest.raises(ConfigurationError, match='on "cuda" cuBLAS multiplies'):
        run(settings_of(tmp_path, **{"parallel.device": "cuda"}))
    with pytest.raises(ConfigurationError, match="numpy or mkl or onednn"):
        sk.ShardingConfiguration(object(), blas="auto")


def test_the_products_are_those_of_the_layers_with_their_weights(tmp_path):
    settings = settings_of(
        tmp_path, **{"parallel.compute_dtype": "bfloat16", "model.style": "gpt2"}
    )
    sk.run_ranks(
        1, lambda backend: train_run(settings.replace({"parallel.blas": "numpy"}), backend)
    )
    task = settings.make_task()
    task.open(tmp_path / "run")
    found = products_of_step(task)
    width = settings.model.width
    rows = settings.batch.micro_batch * settings.model.sequence_length
    wide = 4 * width
    forward = Product((rows, width), PLAIN, (width, wide), TRANSPOSED, "bfloat16")
    for_x = Product((rows, wide), PLAIN, (wide, width), PLAIN, "bfloat16")
    for_weight = Product((wide, rows), TRANSPOSED, (rows, width), PLAIN, "bfloat16")
    assert found[forward] == found[for_x] == found[for_weight] == settings.model.layers
    assert all(product.flops <= 2e9 for product in found)


def test_a_product_too_large_to_be_tried_has_fewer_rows_and_counts_more_often():
    model = sk.models.MLP([1000, 1000, 10]).finish(0)
    found = products_of_layers(model, 4000, "float32")
    assert found[Product((1000, 1000), PLAIN, (1000, 1000), TRANSPOSED, "float32")] == 4
    assert found[Product((4000, 1000), PLAIN, (1000, 10), TRANSPOSED, "float32")] == 1


def test_a_library_is_timed_by_the_sum_of_its_products(libraries):
    libraries.setitem(blas.LIBRARIES, "onednn", lambda: Slow("slow", 0.1))
    product = Product((4, 4), PLAIN, (4, 4), PLAIN, "float32")
    found = measured_seconds({product: 3.0}, seconds=0.1)
    assert found.keys() == {"numpy", "onednn"}
    assert 0.3 <= found["onednn"] < 30 and 0.006 <= found["numpy"] < found["onednn"]
    assert numpy.isfinite([*found.values()]).all()
