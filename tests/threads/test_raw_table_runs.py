"""Runs on raw tables: fitted by all ranks, kept by the run, applied to files of other rows."""

import json
import shutil

import h5py
import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.cli import main
from shardkit.testing.data import csv
from shardkit.testing.task import load_task
from shardkit.testing.train import (
    TrainedRun,
    configuration_of,
    evaluate,
    first_settings,
    predict,
    train_run,
)

pytest.importorskip("pyarrow")

Configuration = configuration_of(load_task("table"))
ROWS = 240
SMALL = {
    "run.task": "table",
    "batch.sequences": 24,
    "batch.micro_batch": 4,
    "run.steps": 4,
    "run.checkpoint_every": 2,
    "run.validate_every": 2,
    "model.hidden": [8],
    "data.rare": 3,
}


def raw(rows=ROWS, seed=0, cities="Rome Bari Pisa"):
    draw = numpy.random.default_rng(seed)
    words = draw.choice(cities.split(), rows)
    size = draw.lognormal(4, 1, rows).round(3)
    days = numpy.datetime64("2025-01-01") + draw.integers(0, 500, rows)
    codes = draw.integers(0, 30, rows)
    price = (size * (1 + (words == "Rome")) * 100).round(2)
    grade = 1 + numpy.digitize(price, [3000, 6000, 12000, 20000])
    lines = [
        f"{w},{s},{d},k{c},{i % 7},{p},{g}"
        for i, (w, s, d, c, p, g) in enumerate(zip(words, size, days, codes, price, grade))
    ]
    for row in range(0, rows, 9):
        cells = lines[row].split(",")
        cells[row // 9 % 3] = ""
        lines[row] = ",".join(cells)
    return "\n".join(["city,size,day,code,shop,price,grade", *lines]) + "\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "t.csv").write_text(raw())
    (tmp_path / "new.csv").write_text(raw(31, 1, "Rome Oslo"))
    return tmp_path


def settings_of(folder, **changes):
    given = {
        "run.folder": str(folder / "run"),
        "data.path": str(folder / "t.csv"),
        "data.features": ["city:shop"],
        "data.target": ["price"],
    }
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return first_settings(Configuration, {**SMALL, **given, **changes})


CLASSES = {"data__target": ["grade"], "data__kind": "multiclass"}
QUANTILES = 0.1, 0.5, 0.9
MIXED = {
    "data__target": ["price", "grade"],
    "data__kind": "mixed",
    "data__categories": ["grade"],
    "data__quantiles": QUANTILES,
    "data__features": ["city:code"],
    "data__weights": "shop",
}


def run(settings, *, num_ranks=1):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend))[0]


def described(folder, name="run"):
    return json.loads((folder / name / "data" / "table.json").read_text())


def test_what_is_fitted_is_kept_shown_and_in_the_checkpoint(folder, capsys):
    run(settings_of(folder, **CLASSES))
    found = described(folder)
    kinds = {each["name"]: each["kind"] for each in found["features_as"]}
    assert kinds == {
        "city": "categories",
        "size": "numbers",
        "day": "times",
        "code": "categories",
        "shop": "numbers",
    }
    assert found["targets_as"] == [
        {"kind": "classes", "name": "grade", "values": ["1", "2", "3", "4", "5"]}
    ]
    beside = folder / "run" / "checkpoints" / "step-00000004" / "table.json"
    assert beside.read_bytes() == (folder / "run" / "data" / "table.json").read_bytes()
    for place in (folder / "run", beside.parent):
        capsys.readouterr()
        assert main(["inspect", str(place)]) == 0
        shown = capsys.readouterr().out
        assert "3 categories (" in shown and "gaps and all others, a column each" in shown
        assert "5 classes: 1, 2, 3, 4, 5" in shown and "learned numbers" in shown


def predicted(folder, data, num_ranks=1, name="run"):
    def write(backend):
        trained = TrainedRun(folder / name, {}, backend)
        predict(trained, trained.samples(data, has_targets=False), folder / "out.h5")
        trained.close()

    sk.run_ranks(num_ranks, write)
    with h5py.File(folder / "out.h5") as file:
        return {dataset: file[dataset][:] for dataset in file}


def test_a_raw_file_with_unseen_categories_and_no_target_is_predicted(folder):
    run(settings_of(folder, **CLASSES))
    rows = [line.rpartition(",")[0] for line in (folder / "new.csv").read_text().splitlines()]
    (folder / "bare.csv").write_text("\n".join(rows).replace(",", ";") + "\n")
    found = predicted(folder, str(folder / "bare.csv"))
    assert found["name"].dtype.kind == "S" and set(found["name"]) <= {b"1", b"2", b"3", b"4", b"5"}
    assert numpy.array_equal(found["class"] + 1, found["name"].astype(int))
    again = predicted(folder, str(folder / "new.csv"), num_ranks=3)
    assert all(numpy.array_equal(found[name], again[name]) for name in found)


def test_predictions_are_in_the_units_of_a_target_that_was_scaled_by_logarithms(folder):
    run(
        settings_of(
            folder,
            run__steps=60,
            batch__micro_batch=24,
            run__checkpoint_every=60,
            run__validate_every=60,
            optimizer__learning_rate=0.02,
        )
    )
    (target,) = described(folder)["targets_as"]
    assert target["log_from"] == 0.0
    prices = [float(line.split(",")[5]) for line in (folder / "t.csv").read_text().split()[1:]]
    found = predicted(folder, str(folder / "t.csv"))["prediction"][:, 0]
    assert (found > 0).all() and numpy.corrcoef(numpy.log(found), numpy.log(prices))[0, 1] > 0.8


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "ranks, changes",
    [((1, 3), MIXED), ((1, 3), CLASSES), ((1, 2, 4), {"batch__sequences": 16})],
)
def test_a_run_has_the_same_bits_on_any_number_of_ranks(ranks, changes, folder, monkeypatch):
    monkeypatch.setattr(csv, "_BLOCK_BYTES", 1 << 10)
    found, counts = [], ranks
    for ranks in counts:
        name = f"run{ranks}"
        run(settings_of(folder, run__folder=str(folder / name), **changes), num_ranks=ranks)
        found.append((find_checkpoint(folder / name)[0], described(folder, name)))
    for checkpoint, about in found[1:]:
        assert about == found[0][1]
        assert compare(found[0][0], checkpoint, tolerance=0.0, model_only=True).is_equal


def softmax(logits):
    shares = numpy.exp(logits - logits.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("has_weights", [True, False])
def test_a_number_and_a_class_are_predicted_by_one_model(has_weights, folder):
    run(settings_of(folder, **MIXED | ({} if has_weights else {"data__weights": None})))

    def look(backend):
        trained = TrainedRun(folder / "run", {}, backend)
        samples = trained.samples(str(folder / "t.csv"))
        x, y = samples.read(numpy.arange(ROWS))
        figures, raw = evaluate(trained, samples), trained.model.predict(x).astype("f8")
        trained.close()
        return figures, raw, y.astype("f8")

    (figures, raw, y) = sk.run_ranks(1, look)[0]
    above = y[:, :1] - raw[:, :3]
    pinball = numpy.maximum(above * QUANTILES, above * (numpy.array(QUANTILES) - 1)).mean(1)
    right = y[:, 1].astype(int)
    entropy = -numpy.log(softmax(raw[:, 3:])[numpy.arange(ROWS), right])
    weights = y[:, 2] if has_weights else 1.0
    assert raw.shape == (ROWS, 8) and figures.loss == pytest.approx(
        ((pinball + entropy) * weights).mean(), rel=1e-5
    )
    found = predicted(folder, str(folder / "t.csv"), num_ranks=2)
    prices = numpy.array(
        [float(line.split(",")[5]) for line in (folder / "t.csv").read_text().split()[1:]]
    )
    quantiles = numpy.stack([found[f"price.quantile_{q}"] for q in QUANTILES], 1)
    assert (numpy.diff(quantiles, axis=1) >= 0).all()
    assert numpy.array_equal(found["price.prediction"], quantiles[:, 1:2])
    inside = (quantiles[:, 0] <= prices) & (prices <= quantiles[:, 2])
    assert figures.metrics["price.coverage"] == pytest.approx(inside.mean())
    errors = numpy.abs(quantiles[:, 1] - prices)
    assert figures.metrics["price.mae"] == pytest.approx(errors.mean(), rel=1e-6)
    assert figures.metrics["grade.accuracy"] == (raw[:, 3:].argmax(1) == right).mean()
    assert numpy.array_equal(found["grade.class"] + 1, found["grade.name"].astype(int))
    assert numpy.allclose(found["grade.probability"], softmax(raw[:, 3:]), rtol=1e-4)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    parts = [json.loads(line) for line in lines if "train_loss_price" in line]
    assert parts and all(
        each["train_loss"] == pytest.approx(each["train_loss_price"] + each["train_loss_grade"])
        for each in parts
    )


@pytest.mark.thorough
def test_quantiles_of_a_number_alone_hold_as_many_rows_as_they_say(folder):
    changes = {"data__quantiles": QUANTILES, "optimizer__learning_rate": 0.02}
    steps = {"run__steps": 300, "run__checkpoint_every": 300, "run__validate_every": 300}
    steps["batch__micro_batch"] = 24
    run(settings_of(folder, **changes, **steps, data__validation_percent=20.0))
    found = predicted(folder, str(folder / "t.csv"))
    assert [*found] == ["prediction", "quantile_0.1", "quantile_0.5", "quantile_0.9"]
    prices = numpy.array(
        [float(line.split(",")[5]) for line in (folder / "t.csv").read_text().split()[1:]]
    )
    below = [(prices <= found[f"quantile_{q}"]).mean() for q in QUANTILES]
    assert numpy.allclose(below, QUANTILES, atol=0.12)


def test_a_stage_of_its_own_looks_categories_up(folder):
    staged = {"mesh__pipeline": 2, "parallel__minimum_parameter_group_size": 1}
    run(settings_of(folder))
    shutil.move(folder / "run", folder / "whole")
    run(settings_of(folder, **staged), num_ranks=2)
    found = [find_checkpoint(folder / name)[0] for name in ("whole", "run")]
    assert compare(*found, tolerance=0.0, model_only=True).is_equal


def held_out(folder, **changes):
    """The rows of the file that a run holds out."""
    settings = settings_of(folder, data__validation_percent=20.0, **changes)
    task = settings.make_task()
    task.num_surveys(folder / "none", False)
    return task._new[1].ranges.numbers(numpy.arange(len(task._new[1])))


def test_groups_are_held_out_whole_and_time_from_its_end(folder):
    lines = (folder / "t.csv").read_text().splitlines()[1:]
    codes, days = ([line.split(",")[at] for line in lines] for at in (3, 2))
    held = held_out(folder, data__split_by="code", data__features=["city:day", "shop"])
    inside = {codes[row] for row in held}
    assert len(inside) == 6 and not inside & {codes[row] for row in {*range(ROWS)} - {*held}}
    late = held_out(folder, data__split_in_time="day")
    others = [days[row] for row in {*range(ROWS)} - {*late.tolist()} if days[row]]
    assert min(days[row] for row in late) > max(others) and 40 < len(late) < 50


WRONG = {
    "texts as numbers": ({"data__target": ["city"], "data__features": ["size"]}, "holds texts, 3"),
    "no value of a target": (
        {"data__target": ["size"], "data__features": ["city"]},
        "column size of data.target: nothing in .* training rows",
    ),
    "fractions as classes": (
        {"data__target": ["price"], "data__kind": "multiclass", "data__features": ["size"]},
        r"t.csv, line \d+, column price: .*; wanted a class",
    ),
    "five classes as two": ({**CLASSES, "data__kind": "binary"}, "5 classes in grade"),
    "a column that is not there": ({"data__split_by": "cod"}, "data.split_by.*did you mean code"),
    "a text as a time": ({"data__split_in_time": "code"}, r"t.csv, line 2, column code: 'k\d+'"),
    "two ways to hold out": (
        {"data__split_in_time": "day", "data__split_by": "code"},
        "data.split_by and data.split_in_time both say",
    ),
    "a way beside rows held out": (
        {"data__split_by": "code", "data__validation_path": "other.csv"},
        "data.validation_path and data.split_by both say",
    ),
    "times to predict": (
        {"data__target": ["day"], "data__features": ["size"]},
        "column day of data.target holds times",
    ),
    "mixed, but numbers alone": (
        {**MIXED, "data__categories": ["code"], "data__target": ["price", "shop_"]},
        "'mixed' of price, shop_; wanted several targets, of which texts",
    ),
    "mixed, but one": ({**MIXED, "data__target": ["grade"]}, "'mixed' of grade; wanted several"),
    "a target twice": ({"data__target": ["price", "price"]}, "price is a target twice"),
    "quantiles without a middle": ({"data__quantiles": [0.1, 0.9]}, "and 0.5 among them"),
    "quantiles of classes": ({**CLASSES, "data__quantiles": [0.5]}, "data.quantiles is for num"),
    "class weights of several": (
        {**MIXED, "data__class_weights": "balanced"},
        "class_weights is for classes, but data.kind = 'mixed'",
    ),
    "a category that is not there": (
        {"data__categories": ["cod"]},
        "data.categories = 'cod': .* did you mean code",
    ),
    "weights below 0": (
        {"data__weights": "shop_", "data__features": ["size"]},
        r"line \d+, column shop_: -1.0; wanted a weight of 0 or more",
    ),
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_refused_on_all_ranks(case, ranks, folder):
    changes, words = WRONG[case]
    lines = (folder / "t.csv").read_text().splitlines()
    below = ["shop_", *(str(i % 3 - 1) for i in range(ROWS))]
    (folder / "t.csv").write_text("\n".join(map(",".join, zip(lines, below))) + "\n")

    def refused(backend):
        with pytest.raises(ConfigurationError, match=words):
            train_run(settings_of(folder, **changes), backend)

    sk.run_ranks(ranks, refused)


def test_a_slip_is_named_with_its_line(folder):
    lines = (folder / "t.csv").read_text().splitlines()
    lines[100] = lines[100].replace(lines[100].split(",")[1], "l2.5", 1)
    (folder / "t.csv").write_text("\n".join(lines) + "\n")

    def refused(backend):
        with pytest.raises(ConfigurationError, match=words) as caught:
            train_run(settings_of(folder), backend)
        assert type(caught.value) is ConfigurationError

    words = r"t.csv, line 101, column size: 'l2.5'; wanted"
    sk.run_ranks(2, refused)


@pytest.mark.parametrize("kinds", [("t.csv", "t.npz"), ("t.npz", "t.csv")])
def test_rows_that_are_held_out_are_of_the_same_kind(kinds, folder):
    (folder / "t.csv").write_text("a,b\n" + "1,2\n3,4\n" * 20)
    numpy.savez(folder / "t.npz", a=numpy.arange(40.0), b=numpy.arange(40.0))
    paths = dict(zip(("data__path", "data__validation_path"), [str(folder / k) for k in kinds]))
    about = {"data__features": ["a"], "data__target": ["b"], "data__rare": 10}
    given = settings_of(folder, **about, **paths)
    with pytest.raises(ConfigurationError, match="are of two kinds, arrays and columns"):
        run(given)


def test_a_file_that_does_not_fit_the_run_is_refused(folder):
    run(settings_of(folder, data__rare=10, **CLASSES))
    numpy.savez(folder / "t.npz", **dict.fromkeys(("city", "size", "day", "code", "shop"), [1.0]))
    with pytest.raises(ConfigurationError, match="holds arrays, .* trained on columns of a table"):
        predicted(folder, str(folder / "t.npz"))
    for content, words in {
        "city,size\nRome,1\n": "has no day",
        raw(9)
        .replace(",grade", ",grade")
        .replace("Rome,", "Rome,x", 1): "line .*, column size: 'x",
    }.items():
        (folder / "bad.csv").write_text(content)
        with pytest.raises(ConfigurationError, match=words):
            predicted(folder, str(folder / "bad.csv"))


FRAMES = {
    "numbers for times": ({"day": [5.0, 6.0]}, "row 0, column day: no time; wanted one"),
    "times for numbers": ({"size": ["M8[s]", 5, 6]}, "column size: a time; wanted none"),
    "times for texts": ({"city": ["M8[s]", 5, 6]}, "column city: a time; wanted none"),
    "nothing for times": ({"day": [None, None]}, None),
}


@pytest.mark.parametrize("case", FRAMES)
def test_values_of_another_kind_than_in_training_are_refused(case, folder):
    import pyarrow

    run(settings_of(folder, data__features=["city:day"]))
    changes, words = FRAMES[case]
    columns = {"city": ["Rome", "Bari"], "size": [1.5, 2.5], "day": numpy.array([5, 6], "M8[s]")}
    for name, values in changes.items():
        is_time = values[0] == "M8[s]"
        columns[name] = numpy.array(values[1:], "M8[s]") if is_time else values
    frame = pyarrow.table(columns)
    if words is None:
        assert numpy.isfinite(predicted(folder, frame)["prediction"]).all()
        return
    with pytest.raises(ConfigurationError, match=words):
        predicted(folder, frame, num_ranks=2)


def test_categories_are_the_same_with_and_without_zeros_behind_a_point(folder):
    run(settings_of(folder, data__categories=["shop"]))
    lines = [line.split(",") for line in (folder / "new.csv").read_text().splitlines()]
    for cells in lines[1:]:
        cells[4] += ".0"
    (folder / "points.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    found = [
        predicted(folder, str(folder / name))["prediction"] for name in ("new.csv", "points.csv")
    ]
    assert numpy.array_equal(*found)


def test_classes_that_are_texts_stay_so_where_a_file_has_booleans_alone(folder):
    lines = [f"{i % 7},{('true', 'false', 'unknown')[i % 3]}" for i in range(90)]
    (folder / "t.csv").write_text("\n".join(["a,known", *lines]) + "\n")
    few = [line for line in lines if "unknown" not in line]
    (folder / "few.csv").write_text("\n".join(["a,known", *few]) + "\n")
    about = {"data__target": ["known"], "data__kind": "multiclass", "data__features": ["a"]}
    run(settings_of(folder, **about))

    def measured(backend):
        trained = TrainedRun(folder / "run", {}, backend)
        figures = evaluate(trained, trained.samples(str(folder / "few.csv")))
        trained.close()
        return figures.samples

    assert sk.run_ranks(1, measured) == [60]


def test_ranks_with_frames_of_other_columns_are_told(folder):
    import pyarrow

    columns = {"a": [*range(40)], "b": [*range(40)], "y": [*range(40)]}
    frames = [pyarrow.table(columns), pyarrow.table(columns).drop(["b"])]
    settings = {"data.target": ["y"], "batch.sequences": 4, "batch.micro_batch": 2, "run.steps": 1}

    def train(backend):
        frame = frames[backend.rank]
        sk.Training("table", frame, folder=folder / "f", settings=settings, backend=backend).run()

    with pytest.raises(ConfigurationError, match="the frame: not all ranks have a column b"):
        sk.run_ranks(2, train)


def test_a_feature_that_tells_the_target_is_warned_of(folder):
    text = (folder / "t.csv").read_text().splitlines()
    copies = ["copy", *(f"{float(line.split(',')[5]) * 2}" for line in text[1:])]
    (folder / "t.csv").write_text("\n".join(f"{a},{b}" for a, b in zip(copies, text)) + "\n")
    with pytest.warns(sk.ShardingWarning, match="column copy alone tells price"):
        run(settings_of(folder, data__features=["copy", "city"]))


def test_settings_of_columns_are_refused_for_arrays(folder):
    numpy.savez(folder / "t.npz", x=numpy.ones((9, 2)), y=numpy.ones(9))
    given = {"data__path": str(folder / "t.npz"), "data__features": ["x"], "data__target": ["y"]}
    with pytest.raises(ConfigurationError, match="data.rare is for tables of columns"):
        run(settings_of(folder, **given))


def test_a_frame_trains_and_predicts_as_its_file(folder):
    import pyarrow.csv

    how = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    frame = pyarrow.csv.read_csv(folder / "t.csv", convert_options=how)
    settings = {name: value for name, value in SMALL.items() if name != "run.task"}
    settings |= {"data.features": ["city:shop"], "data.target": ["price"], "batch.sequences": 16}
    run(settings_of(folder, batch__sequences=16))

    def train(backend):
        training = sk.Training(
            "table", frame, folder=folder / "framed", settings=settings, backend=backend
        )
        training.run()
        training.predict(frame, folder / "framed.h5")
        return training.evaluate(frame)

    figures = sk.run_ranks(2, train)
    assert figures[0].samples == ROWS
    found = [find_checkpoint(folder / name)[0] for name in ("run", "framed")]
    assert compare(*found, tolerance=0.0, model_only=True).is_equal
    with h5py.File(folder / "framed.h5") as file:
        expected = predicted(folder, str(folder / "t.csv"))["prediction"]
        assert numpy.array_equal(file["prediction"][:], expected)
    frame = frame.slice(1)
    with pytest.raises(ConfigurationError, match="the frame is not what this run was trained on"):
        sk.run_ranks(2, train)


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_run_of_before_opens_and_predicts_as_it_did(kind, folder):
    """Its table.json has the scaling of columns of numbers and no encodings."""
    lines = [f"{i / 7},{i % 5},{i % 3}" for i in range(60)]
    (folder / "t.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    given = {"data__features": ["a", "b"], "data__target": ["y"], "data__scaling": "standard"}
    given["data__kind"] = "multiclass" if kind == "classes" else "regression"
    run(settings_of(folder, data__target_scaling="standard", **given))
    expected = predicted(folder, str(folder / "t.csv"))
    place = folder / "run" / "data" / "table.json"
    about = json.loads(place.read_text())
    for side in ("x", "y"):
        columns = about.pop("features_as" if side == "x" else "targets_as")
        if columns[0]["kind"] != "classes":
            about[side] |= {n: [each[n] for each in columns] for n in ("center", "scale")}
    about["feature_names"] = ["a", "b"]
    del about["left_out"]
    place.write_text(json.dumps(about))
    found = predicted(folder, str(folder / "t.csv"))
    assert all(numpy.array_equal(found[name], expected[name]) for name in found)
    assert {*expected} - {*found} == ({"name"} if kind == "classes" else set())
