"""The tasks of rows that are arrays: each trains, scales channel by channel, and has the same bits
on every mesh.
"""

import json

import h5py
import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.task import load_task
from shardkit.testing.train import (
    TrainedRun,
    configuration_of,
    evaluate,
    first_settings,
    predict,
    train_run,
)

ROWS = 40
SMALL_IMAGES = {"model.small_images": True, "model.norm": "group"}
PATCH = {"model.patch": [2], "data.kind": "regression"}
TWO = {"model.patch": [3, 4], "data.kind": "binary"}
CASES = {
    "field": ("fno", "u", ["v"], {"model.width": 4, "model.modes": [3], "model.layers": 2}),
    "plane": ("fno", "w", ["w2"], {"model.width": 4, "model.modes": [2, 3], "model.layers": 1}),
    "end": ("lstm", "s", ["a", "b"], {"model.width": 6}),
    "steps": ("lstm", "s", ["each"], {"model.width": 6, "model.dropout": 0.2}),
    "classes": ("lstm", "s", ["k"], {"model.width": 6, "data.kind": "multiclass"}),
    "nodes": ("message_passing", "n", ["of_node"], {"model.width": 5}),
    "images": ("resnet", "w", ["c"], {"model.width": 8, "model.layers": [1, 1], **SMALL_IMAGES}),
    "numbers": ("vit", "w", ["a"], {"model.width": 8, "model.depth": 2, "model.heads": 2, **PATCH}),
    "two": ("vit", "w", ["t"], {"model.width": 8, "model.depth": 1, "model.heads": 2, **TWO}),
    "masks": ("unet", "w", ["w2"], {"model.width": 8, "model.depth": 1}),
    "graph": ("message_passing", "n", ["a"], {"model.width": 5, "model.steps": 1}),
}
MESHES = {1: [{}], 2: [{}, {"mesh.pipeline": 2, "parallel.minimum_parameter_group_size": 1}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "arrays.h5"
    rng = numpy.random.default_rng(3)
    u, w = rng.normal(5, 3, (ROWS, 2, 12)), rng.normal(-1, 2, (ROWS, 1, 6, 8))
    s, n = rng.normal(2, 4, (ROWS, 7, 3)), rng.normal(0, 9, (ROWS, 5, 2))
    with h5py.File(path, "w") as file:
        file.create_dataset("u", data=u, chunks=(8, 2, 12))
        file.update(
            {
                "v": 100 + 7 * numpy.roll(u[:, :1], 2, 2),
                "w": w,
                "w2": 3 + numpy.concatenate([w, 50 * w**2], 1),
                "s": s,
                "a": s.sum((1, 2)),
                "b": 1000 + 20 * s[:, -1, 0],
                "each": s.cumsum(1)[:, :, :2],
                "k": numpy.digitize(s[:, -1, 0], [-1, 5]),
                "c": numpy.digitize(w[:, 0, 0, 0], [-2, 0]),
                "t": (w[:, 0, 0, 0] > -1).astype("int8"),
                "n": n,
                "of_node": n[:, :, :1] * 2 + 1,
                "edges": numpy.array([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]),
            }
        )
    return path


def settings_of(data, folder, case, **changes):
    name, x, target, own = CASES[case]
    given = {
        "run.task": name,
        "run.folder": str(folder),
        "run.steps": 2,
        "run.checkpoint_every": 2,
        "run.validate_every": 2,
        "batch.sequences": 8,
        "batch.micro_batch": 2,
        "optimizer.warmup_steps": 1,
        "data.path": str(data),
        "data.features": [x],
        "data.target": target,
        **own,
        **changes,
    }
    return first_settings(configuration_of(load_task(given["run.task"])), given)


def run(settings, num_ranks=1):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=False))[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.thorough
def test_a_run_has_the_same_bits_on_every_mesh(case, data, tmp_path):
    folders = []
    for ranks, meshes in MESHES.items():
        for mesh in meshes[: 1 if case == "masks" else None]:  # a UNet has no blocks
            folders.append(tmp_path / str(len(folders)))
            run(settings_of(data, folders[-1], case, **mesh), ranks)
    first, *others = [find_checkpoint(folder)[0] for folder in folders]
    for other in others:
        assert compare(first, other, model_only=True).is_equal


@pytest.mark.parametrize("case", ["field", "steps", "nodes"])
@pytest.mark.thorough(but=2)
def test_channels_are_scaled_as_numpy_does_and_predictions_are_in_the_units_of_the_file(
    case, data, tmp_path
):
    _, x_name, (y_name,), _ = CASES[case]
    run(settings_of(data, tmp_path / "run", case))
    described = json.loads((tmp_path / "run" / "data" / "table.json").read_text())
    with h5py.File(data) as file:
        x, y = file[x_name][:], file[y_name][:]
    axis = 1 if case == "field" else 2
    over = tuple(dim for dim in range(x.ndim) if dim != axis)
    training = _training_rows(data, tmp_path, case)
    for values, found in ((x[training], described["x"]), (y[training], described["y"])):
        numpy.testing.assert_allclose(found["center"], values.mean(over), rtol=1e-12)
        numpy.testing.assert_allclose(found["scale"], values.std(over), rtol=1e-12)

    def measure(backend):
        trained = TrainedRun(tmp_path / "run", {}, backend)
        found = evaluate(trained, trained.samples(str(data)))
        predict(trained, trained.samples(str(data), has_targets=False), tmp_path / "out.h5")
        trained.close()
        return found

    found = sk.run_ranks(2, measure)[0]
    with h5py.File(tmp_path / "out.h5") as file:
        error = file["prediction"][:] - y
    assert found.metrics["rmse"] == pytest.approx(numpy.sqrt((error**2).mean()), rel=1e-6)


@pytest.mark.parametrize(
    "case, mesh, ranks, others",
    [
        (
            "masks",
            {"mesh.domain": 2, "parallel.domain_grid": [1, 2]},
            2,
            [(1, {}), (3, {"mesh.domain": 3})],
        ),
        (
            "images",
            {"mesh.pipeline": 2, "parallel.blocks_per_stage": [2, 2]},
            2,
            [(1, {}), (3, {})],
        ),
    ],
)
def test_a_run_is_measured_on_ranks_that_cut_otherwise(case, mesh, ranks, others, data, tmp_path):
    """How its own ranks cut blocks or samples, by hand, says nothing of others."""
    run(settings_of(data, tmp_path / "run", case, **mesh), ranks)

    def measure(backend, given):
        trained = TrainedRun(tmp_path / "run", given, backend)
        found = evaluate(trained, trained.samples(None))
        trained.close()
        return found.loss

    def loss_on(number, given):
        return sk.run_ranks(number, lambda backend: measure(backend, given))[0]

    wanted = loss_on(ranks, {})
    for number, given in others:
        assert loss_on(number, given) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["masks", "images"])
@pytest.mark.parametrize(
    "mesh", [{"mesh.domain": 3}, {"mesh.domain": 2, "parallel.policy": "zero2"}]
)
def test_ranks_share_samples_of_a_run(case, mesh, data, tmp_path):
    """Training, validation, evaluation and predictions, with two data ranks beside or one."""
    # By seed 0 a ReLU gets a number that another order of sums takes across 0.
    seed = {"run.seed": 1}
    own = {**mesh, **seed, "parallel.minimum_parameter_group_size": 1}
    losses = [
        run(settings_of(data, tmp_path / name, case, **changes), ranks).validation_loss
        for name, changes, ranks in (
            ("cut", own, 4 if mesh["mesh.domain"] == 2 else 3),
            ("whole", seed, 1),
        )
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

    def measure(backend, name, mesh):
        trained = TrainedRun(tmp_path / name, mesh, backend)
        found = evaluate(trained, trained.samples(str(data)))
        out = tmp_path / f"{name}{backend.world_size}.h5"
        predict(trained, trained.samples(str(data), has_targets=False), out)
        trained.close()
        with h5py.File(out) as file:
            return found.metrics, {each: file[each][:] for each in file}

    wanted = sk.run_ranks(1, lambda backend: measure(backend, "cut", {"mesh.domain": 1}))[0]
    found = sk.run_ranks(4, lambda backend: measure(backend, "cut", {"mesh.domain": 2}))[0]
    assert found[0] == pytest.approx(wanted[0], rel=1e-5)
    for each, values in wanted[1].items():
        numpy.testing.assert_allclose(found[1][each], values, rtol=1e-3, atol=1e-4)


def _training_rows(data, tmp_path, case):
    """Return the numbers of the rows that the run trains on."""
    settings = settings_of(data, tmp_path / "run", case)
    task = settings.task_class(settings)
    task.open(tmp_path / "run")
    samples = task.samples("training")
    x, _ = samples.read(numpy.arange(len(samples)))
    whole, _ = task.samples_of(str(data)).read(numpy.arange(ROWS))
    return [number for number in range(ROWS) if any((whole[number] == row).all() for row in x)]


WRONG = {
    "two fields": ("end", {"data.features": ["s", "n"]}, "several columns"),
    "vectors": ("end", {"data.features": ["a"], "data.target": ["b"]}, r"wanted \(time, features"),
    "flat": ("field", {"data.features": ["a"]}, "a row of x has shape \\(\\)"),
    "another grid": ("field", {"data.target": ["a"]}, "wanted a field on the grid of x"),
    "classes of fields": ("field", {"data.kind": "binary"}, "the task 'fno' predicts regression"),
    "weights": ("end", {"data.weights": "b", "data.target": ["a"]}, "rows of arrays have none"),
    "no edges": ("nodes", {"data.edges": "u"}, "wanted a dataset \\[2, edges\\]"),
    "edges elsewhere": ("nodes", {"data.edges": "missing"}, "it has none"),
    "classes of masks": ("masks", {"data.kind": "binary"}, "the task 'unet' predicts regression"),
    "too deep": ("masks", {"model.depth": 2}, "wanted sizes that 4 divides"),
    "patches": ("two", {"model.patch": [4]}, "patch"),
    "many modes": ("field", {"model.modes": [40]}, "modes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_rows_that_do_not_fit_are_refused_on_all_ranks(case, data, tmp_path):
    base, changes, message = WRONG[case]
    with pytest.raises(ConfigurationError, match=message):
        run(settings_of(data, tmp_path / "run", base, **changes), 2)
    assert not list((tmp_path / "run").glob("checkpoints/step*"))


OWN = """
from dataclasses import dataclass

from shardkit.testing.base import fixed
from shardkit.testing.task import architectures, images


@dataclass(frozen=True, kw_only=True)
class Sizes({module}.{sizes}):
    share: float = fixed("it scales the first weights", 0.5, "of the weights of a user's own")
    in_channels: int = fixed("it is the user's", 77, "what the model gets from the rows")


class Own({module}.{task}):
    sections = {{**{module}.{task}.sections, "model": Sizes}}

    def make_model(self):
        model = super().make_model()
        model.share = self.settings.model.share
        return model
"""


@pytest.mark.parametrize(
    "case, module, task, sizes",
    [
        ("field", "architectures", "FNOTask", "FNOSizes"),
        ("end", "architectures", "LSTMTask", "LSTMSizes"),
        ("graph", "architectures", "MessagePassingTask", "GraphSizes"),
        ("images", "images", "ResNetTask", "ResNetSizes"),
        ("two", "images", "ViTTask", "ViTSizes"),
        ("masks", "images", "UNetTask", "UNetSizes"),
    ],
)
def test_a_task_that_derives_from_one_can_add_settings_to_its_model(
    case, module, task, sizes, data, tmp_path
):
    file = tmp_path / f"own_{task}.py"
    file.write_text(OWN.format(module=module, task=task, sizes=sizes))
    own = {"run.task": f"{file}:Own", "model.share": 0.25, "run.steps": 1}
    run(settings_of(data, tmp_path / "run", case, **own))
    models = []
    for changes in ({}, own):
        settings = settings_of(data, tmp_path / "run", case, **changes)
        made = settings.task_class(settings)
        made.open(tmp_path / "run")
        models.append(made.make_model())
    first, second = [
        {name: parameter.shape for name, parameter in model.named_parameters().items()}
        for model in models
    ]
    assert first == second and models[1].share == 0.25


# parameters by the number of places of a row at which they are applied
PLACES = {
    "steps": lambda name: 7,
    "nodes": lambda name: 5,
    "field": lambda name: 1 if "spectral" in name else 12,
    "masks": lambda name: 12 if name.startswith("down") else 48,
    "images": lambda name: {"0": 48, "1": 12}[name.split(".")[1]] if "stages" in name else None,
}


@pytest.mark.parametrize("case", PLACES)
def test_operations_are_six_for_each_parameter_at_each_place(case, data, tmp_path):
    run(settings_of(data, tmp_path / "run", case, **{"run.steps": 1}))
    settings = settings_of(data, tmp_path / "run", case)
    task = settings.task_class(settings)
    task.open(tmp_path / "run")
    model = task.make_model()
    wanted = 0
    for name, parameter in model.named_parameters().items():
        count = PLACES[case](name)
        if count is None:
            count = 1 if name.startswith("head") else 48
        wanted += 6 * count * parameter.size
    assert task.num_flops_per_sample(model) == wanted
