"""Ranks that share samples read their parts alone: what they train, measure and write is what ranks
do that are given whole samples; and nobody asks for a whole one.
"""

import h5py
import numpy
import pytest
from builders import TINY_RUN
from test_domain_models import MODELS, STEPS, batch

import shardkit as sk
from shardkit import Rows, SamplePart, ShapeError, models, nn
from shardkit.testing.nn import RMSE
from shardkit.testing.task import Language, load_task, survey
from shardkit.testing.train import (
    configuration_of,
    first_settings,
    train_run,
)

F64 = {"dtype": "float64"}


def made(backend, name, **sizes):
    model, _, _, loss = MODELS[name]
    config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=0.05), loss=loss)
    sizes = {"data_parallel_size": 1, **sizes}
    return sk.HybridShardedModel(model(), config, policy="fsdp", **sizes)


def figures(backend, name, in_parts, **sizes):
    """Return losses, weights, a prediction and what is measured, by parts or by whole samples."""
    model = made(backend, name, **sizes)
    losses, part = [], sk.domain_part(model)
    for step in range(STEPS):
        mine = sk.split_batch(model.mesh, *batch(name, step))
        losses.append(model.train(*(part.cut(*mine) if in_parts else mine)))
    x, y = part.cut(*mine) if in_parts else mine
    prediction = model.predict(x)
    losses += [model.evaluate(x, y)]
    if prediction.dtype.kind == "f" and prediction.shape == y.shape:
        losses += [model.evaluate(x, y, {"rmse": RMSE()})]
        losses += [model.get_model_metadata()["evaluation"]["metrics"]["rmse"]]
    weights = model.get_parameters()
    model.close()
    return losses, weights, prediction


WITH_PARTS = ["patches", "UNet 3-D", "ResNet", "ViT 2-D", "classes of rows", "texts", "mesh"]


@pytest.mark.strength(1)
@pytest.mark.parametrize("name", WITH_PARTS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.thorough(but=3)
def test_parts_train_to_the_bits_of_whole_samples(name, ranks):
    def both(backend):
        return [figures(backend, name, way, domain_parallel_size=ranks) for way in (False, True)]

    told = sk.run_ranks(ranks, both)
    (losses, weights, prediction), _ = told[0]
    parts = [cut[2] for _, cut in told]
    for _, cut in told:
        assert losses == pytest.approx(cut[0], rel=1e-14)
        assert numpy.array_equal(weights, cut[1])
    if isinstance(parts[0], Rows):
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
        whole = numpy.concatenate([part.array for part in parts], parts[0].dim)
        assert numpy.array_equal(whole, prediction)
    else:
        assert numpy.array_equal(parts[0], prediction)


@pytest.mark.parametrize("name, ranks", [("UNet 2-D", 4), ("ViT 2-D", 3)])
def test_parts_of_integers_are_checked_as_whole_samples_are(name, ranks):
    """A part has fewer rows than the model takes: 5, which no UNet halves, and few of an image."""

    def both(backend):
        model = made(backend, name, domain_parallel_size=ranks)
        x, y = batch(name, 0)
        x = (10 * x).astype("int16")
        losses = [model.evaluate(*pair, {}) for pair in ((x, y), sk.domain_part(model).cut(x, y))]
        model.close()
        return losses

    whole, in_parts = sk.run_ranks(ranks, both)[0]
    assert in_parts == pytest.approx(whole, rel=1e-14)


def drawn(*shape):
    return numpy.random.default_rng(len(shape)).normal(size=shape)


ALIKE = {  # parts of one shape: (model, x, y)
    "rows": (lambda: nn.Conv2d(1, 2, 3, padding=1, **F64), drawn(2, 1, 12, 5), drawn(2, 2, 12, 5)),
    "tokens": (lambda: nn.Linear(3, 2, **F64), drawn(2, 12, 3), drawn(2, 12, 2)),
}


@pytest.mark.parametrize("what", ALIKE)
def test_rows_of_a_rank_that_are_passed_as_whole_samples_are_refused(what):
    """Every rank would take its part of its part."""
    layer, x, y = ALIKE[what]

    def on_rank(backend):
        config = sk.ShardingConfiguration(backend, loss=nn.MSELoss())
        model = sk.HybridShardedModel(nn.Sequential(layer()), config, domain_parallel_size=3)
        in_parts = sk.domain_part(model).cut(x, y)
        own_x, own_y = [each.array for each in in_parts]
        for call in (model.train, model.evaluate, lambda x, y: model.predict(x)):
            with pytest.raises(ShapeError, match="given x.* or other ones, .* domain_part"):
                call(own_x, own_y)
        return model.evaluate(*in_parts), model.evaluate(x, y)

    in_parts, whole = sk.run_ranks(3, on_rank)[0]
    assert in_parts == pytest.approx(whole, rel=1e-14)


class Field(sk.Samples):
    """Fields of 14 rows that nobody may read whole."""

    length, num = 14, 11

    def __len__(self):
        return self.num

    def read(self, numbers, part=None):
        rows = numpy.arange(self.length)
        if part is None and self.is_cut:
            raise AssertionError("a whole sample was read")
        if part is not None:
            rows = rows[slice(*part.span(self.length))]
        grid = rows[:, None] * 0.3 + numpy.arange(6)
        x = numpy.sin(numpy.asarray(numbers)[:, None, None, None] + grid[None, None])
        y = 2 * x**2
        if part is None:
            return x, y
        return part.x(x, self.length), part.y(y, self.length)

    def fingerprint(self):
        return "f1"


def field(is_cut):
    made = Field()
    made.is_cut = is_cut
    return made


def run_of(backend, folder, is_cut, **mesh):
    """Return the losses of a run, what it measures, and what it predicts."""
    net = models.UNet(1, 1, width=4, depth=1, groups=2, dims=2, seed=2, **F64)
    settings = {"run.steps": 4, "batch.sequences": 4, "batch.micro_batch": 2}
    settings |= {"run.validate_every": 2, "optimizer.learning_rate": 1e-2, **mesh}
    rows = field(is_cut)
    training = sk.Training(
        lambda: net,
        (rows, rows),
        folder=folder,
        settings=settings,
        metrics={"rmse": RMSE()},
        backend=backend,
    )
    done = training.run()
    found = training.evaluate(rows)
    training.predict(rows, folder / "out.h5")
    with h5py.File(folder / "out.h5") as file:
        return (
            [done.train_loss, done.validation_loss, found.loss, found.metrics["rmse"]],
            found.samples,
            file["prediction"][:],
        )


MESHES = {
    2: {"mesh.domain": 2},
    3: {"mesh.domain": 3},
    4: {"mesh.domain": 2, "parallel.policy": "zero2"},
}


@pytest.mark.parametrize("ranks", MESHES)
@pytest.mark.thorough(but=1)
def test_a_run_measures_and_writes_without_a_whole_sample(ranks, tmp_path):
    alone, cut = tmp_path / "alone", tmp_path / "cut"
    wanted = sk.run_ranks(1, lambda backend: run_of(backend, alone, False))[0]
    for found in sk.run_ranks(ranks, lambda backend: run_of(backend, cut, True, **MESHES[ranks])):
        assert found[0] == pytest.approx(wanted[0], rel=1e-9)
        assert found[1] == Field.num
        numpy.testing.assert_allclose(found[2], wanted[2], rtol=1e-7, atol=1e-9)


WRONG = {
    "another part": (
        lambda part, x, y: SamplePart(1 - part.number, 2, 1, 1).cut(x, y),
        "x is rows .* along dim 1 of .*; wanted rows 0:6",
    ),
    "one rank whole": (
        lambda part, x, y: (x, y) if part.number else part.cut(x, y),
        r"rank 0 passed x = a slab, y = a slab, but rank 1 x = \*",
    ),
    "another length": (
        lambda part, x, y: part.cut(x[:, : 10 + part.number], y[:, : 10 + part.number]),
        "domain ranks were given x and y of several shapes",
    ),
    "y of other rows": (
        lambda part, x, y: (part.cut(x, y)[0], part.cut(x, y[:, :9])[1]),
        "targets",
    ),
    "y along another dim": (
        lambda part, x, y: (part.cut(x, y)[0], Rows(y, 0, 0, 16)),
        r"y is rows 0:8 along dim 0",
    ),
    "a token beyond the vocabulary": (
        lambda part, x, y: part.cut(numpy.where(numpy.arange(11) == 10, 99, x), y),
        "wanted 0 <= id < 17",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("is_checked", [False, True])
def test_wrong_parts_are_refused_on_all_ranks(case, is_checked):
    give, message = WRONG[case]

    def tried(backend):
        loss = MODELS["texts"][3]
        config = sk.ShardingConfiguration(backend, loss=loss, check=is_checked)
        sizes = {"domain_parallel_size": 2, "data_parallel_size": 1}
        model = sk.HybridShardedModel(MODELS["texts"][0](), config, **sizes)
        x, y = batch("texts", 0)
        with pytest.raises(ShapeError, match=message):
            model.train(*give(sk.domain_part(model), x, y))
        return model.train(*sk.domain_part(model).cut(x, y))

    losses = sk.run_ranks(2, tried)
    assert losses[0] == losses[1]


def test_a_part_is_refused_where_targets_are_whole_and_where_no_ranks_share_samples():
    def tried(backend):
        model = made(backend, "ResNet", domain_parallel_size=2)
        part = sk.domain_part(model)
        x, y = batch("ResNet", 0)
        assert part == SamplePart(backend.rank, 2, 2, None)
        with pytest.raises(ShapeError, match="joins the parts of samples; wanted y of whole"):
            model.train(part.cut(x, y)[0], Rows(y, 0, 0, 8))
        alone = made(backend, "ResNet", data_parallel_size=2)
        assert sk.domain_part(alone) is None
        with pytest.raises(ShapeError, match="is a part of samples"):
            alone.train(part.cut(x, y)[0], y)

    sk.run_ranks(2, tried)


@pytest.mark.parametrize("task", ["unet", "resnet"])
def test_a_large_row_is_scaled_from_its_parts(task, tmp_path, monkeypatch):
    rng = numpy.random.default_rng(1)
    x, y = rng.normal(3, 5, (5, 2, 9, 4)), rng.normal(-7, 2, (5, 1, 9, 4))
    if task == "resnet":
        y = numpy.array([0, 1, 1, 0, 1])  # which comes with the first part alone
    numpy.savez(tmp_path / "a.npz", x=x, y=y)
    settings = {"data.path": str(tmp_path / "a.npz"), "data.features": ["x"], "data.target": ["y"]}
    settings |= {"run.task": task, "data.kind": "regression" if task == "unet" else "multiclass"}
    found = []
    for most in (1 << 17, 40):
        monkeypatch.setattr(survey, "_PIECE_ELEMENTS", most)
        found.append(described(tmp_path / str(most), settings))
    for ours, theirs in zip(*found):
        numpy.testing.assert_allclose(ours, theirs, rtol=1e-13)


def described(folder, settings):
    """Return centers and scales that a run finds, which reads all rows or bands of them."""
    kind = load_task(settings["run.task"])
    task = kind(first_settings(configuration_of(kind), {"run.folder": str(folder), **settings}))
    task.surveyed = [task.survey(number) for number in range(task.num_surveys(folder, False))]
    task.prepare(folder, False)
    task.open(folder)
    scalings = task.described.x, task.described.y
    own = [values for each in scalings for values in (each.center, each.scale)]
    return [*own, task.described.class_counts]


class Unaware(Field):
    """One that reads whole samples."""

    def read(self, numbers):
        return super().read(numbers)


@pytest.mark.parametrize("kind", [Field, Unaware])
def test_a_run_says_once_that_whole_samples_are_read(kind, tmp_path, capfd):
    def trained(backend):
        rows = kind()
        rows.is_cut = kind is Field
        settings = {"run.steps": 1, "batch.sequences": 2, "batch.micro_batch": 2, "mesh.domain": 2}
        net = sk.nn.Sequential(sk.nn.Conv2d(1, 1, 3, padding=1, **F64))
        training = sk.Training(
            net,
            (rows, rows),
            folder=tmp_path,
            settings=settings,
            loss=sk.nn.MSELoss(),
            backend=backend,
        )
        return training.run().train_loss

    assert len(set(sk.run_ranks(2, trained))) == 1
    told = capfd.readouterr().out
    assert told.count("each domain rank reads whole samples") == (kind is Unaware)


class Summary(sk.Task):
    """One that writes the mean of each prediction, which its parts do not have."""

    def make_model(self):
        return sk.nn.Sequential(sk.nn.Conv2d(1, 1, 3, padding=1, **F64)).finish(0)

    def samples(self, part):
        return field(is_cut=self.settings.mesh.domain > 1)

    loss = sk.nn.MSELoss()

    def outputs(self, prediction):
        return {"mean": prediction.mean((1, 2, 3))}


class Doubled(Summary):
    """One whose outputs are of each row."""

    @sk.nn.partwise
    def outputs(self, prediction):
        assert prediction.shape[2] < Field.length or self.settings.mesh.domain == 1
        return {"twice": 2 * prediction}


class Shorter(Summary):
    """One that says so of what is not."""

    outputs = sk.nn.partwise(lambda self, prediction: {"mean": prediction.mean((1, 2))})


def test_ranks_without_samples_run_along_with_parts_of_their_own():
    """23 rows on two ranks are 12 and 11, so that the part of another rank would be refused."""

    def measured(backend):
        model = made(backend, "a net", domain_parallel_size=2, data_parallel_size=2)
        part = sk.domain_part(model)
        with model.evaluation({"rmse": RMSE()}) as found:
            for step in range(1 + 2 * (model.mesh.sample_part[0] == 0)):
                found.add(*part.cut(*batch("a net", step + model.mesh.sample_part[0])))
        alone = made(backend, "a net", data_parallel_size=4)
        with alone.evaluation({"rmse": RMSE()}) as wanted:
            for step in (0, 1, 2, 1):
                wanted.add(*(batch("a net", step) if backend.rank == 0 else (None, None)))
        return [found.loss, *found.metrics.values()], [wanted.loss, *wanted.metrics.values()]

    for found, wanted in sk.run_ranks(4, measured):
        assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("task", [Summary, Doubled])
def test_outputs_of_ones_own_get_whole_predictions_unless_they_take_parts(task, tmp_path):
    wanted, found = (
        sk.run_ranks(ranks, lambda backend, n=ranks: written(backend, task, tmp_path / str(n)))[0]
        for ranks in (1, 2)
    )
    numpy.testing.assert_allclose(found, wanted, rtol=1e-10)


def written(backend, task, folder):
    settings = {"run.steps": 1, "batch.sequences": 2, "batch.micro_batch": 2}
    settings |= {"mesh.domain": backend.world_size}
    training = sk.Training(task, folder=folder, settings=settings, backend=backend)
    training.run()
    training.predict(field(backend.world_size > 1), folder / "out.h5")
    with h5py.File(folder / "out.h5") as file:
        return next(iter(file.values()))[:]


def test_outputs_that_lose_the_rows_are_refused(tmp_path):
    with pytest.raises(sk.ConfigurationError, match="wanted as many along it"):
        sk.run_ranks(2, lambda backend: written(backend, Shorter, tmp_path))


@pytest.mark.thorough
def test_ranks_read_their_tokens_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {i} of {i * i}\n" for i in range(90)))

    def trained(domain):
        given = {"run.folder": str(tmp_path / str(domain)), "data.path": [str(tmp_path / "a.txt")]}
        given |= {**TINY_RUN, "run.steps": 3, "mesh.domain": domain, "run.validate_every": 3}
        settings = first_settings(configuration_of(Language), given)
        done = sk.run_ranks(domain, lambda backend: train_run(settings, backend))[0]
        return [done.train_loss, done.validation_loss]

    assert trained(1) == pytest.approx(trained(3), rel=1e-4)
