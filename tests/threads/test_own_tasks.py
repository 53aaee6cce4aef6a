"""Tasks of the user's own: how their files are found, what they declare, and that they are runs
like any other.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError
from shardkit.testing.base import CorpusError
from shardkit.testing.checkpoint import compare, find_checkpoint
from shardkit.testing.cli import Given, main
from shardkit.testing.task import load_task
from shardkit.testing.train import (
    configuration_of,
    first_settings,
    resumed,
    stored_settings,
    train_run,
)

SURROGATE = '''
import numpy
import shardkit as sk


class Rows(sk.Samples):
    def __init__(self, first, num):
        self.first, self.num = first, num

    def __len__(self):
        return self.num

    def read(self, numbers):
        t = (self.first + numpy.asarray(numbers))[:, None] / 100
        return numpy.float32(numpy.hstack([numpy.sin(t), t])), numpy.float32(numpy.cos(t))

    def fingerprint(self):
        return f"{self.first} {self.num}"


class Surrogate(sk.Task):
    sample = "rows"
    loss_unit = "volts squared"

    class Settings:
        width: int = 8
        noise: float = 0.5
        kind: str | None = None
        sizes: tuple[int, ...] = (3, 4)

    def make_model(self):
        seed, width = self.settings.run.seed, self.settings.task.width
        return sk.models.MLP([2, width, width, 1], seed=seed)

    def samples(self, part):
        return Rows(0, 37) if part == "training" else Rows(40, 5)

    def finish(self, model):
        return f"prediction {model.predict(numpy.ones((1, 2), numpy.float32)).shape}"


def surrogate(settings, width=8):
    """A function that makes a task."""
    made = Surrogate(settings)
    made.make_model = lambda: sk.models.MLP([2, width, 1], seed=settings.run.seed)
    return made


def no_task(settings):
    return 7


class Unfinished(sk.Task):
    def make_model(self):
        return sk.models.MLP([2, 1])


class Other:
    pass


def late(settings, width):
    pass
'''
SMALL = {
    "batch.sequences": 8,
    "batch.micro_batch": 2,
    "run.steps": 6,
    "run.checkpoint_every": 3,
    "run.validate_every": 3,
    "run.report_every": 1,
    "optimizer.decay_steps": 6,
    "parallel.minimum_parameter_group_size": 1,
}


@pytest.fixture
def file(tmp_path, request):
    """A task file with a name of its own: a module of one name is loaded once."""
    path = tmp_path / f"own_{abs(hash(request.node.nodeid))}.py"
    path.write_text(SURROGATE)
    return path


def given(file, *arguments, name="Surrogate"):
    texts = [f"--run.folder={file.parent / 'run'}", *(f"--{k}={v}" for k, v in SMALL.items())]
    return Given.read(None, [f"--run.task={file}:{name}", *texts, *arguments])


def run(settings, num_ranks, resume=False):
    return sk.run_ranks(num_ranks, lambda backend: train_run(settings, backend, resume=resume))[0]


# ---- settings ------------------------------------------------------------------------------------


def test_the_settings_of_a_task_are_in_the_help_and_checked_like_all_others(file, capsys):
    assert main(["train", "--task", f"{file}:Surrogate", "--help"]) == 0
    said = capsys.readouterr().out
    for line in ("--task.width    ", "--task.kind    ", "--run.steps     ", "[3, 4]"):
        assert line in said
    assert "--model.width" not in said and '"runs/surrogate"' in said
    settings = given(file, "--task.width=16", "--task.sizes=[1, 2, 3]").settings()
    assert settings.task.width == 16 and settings.task.sizes == (1, 2, 3)
    for wrong, words in (
        ("--task.widht=3", "did you mean task.width"),
        ("--task.width=much", "task.width = 'much'; wanted an integer"),
        ("--model.width=3", "did you mean task.width"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            given(file, wrong).settings()


def test_a_settings_file_names_the_task_and_its_settings(file):
    path = file.with_suffix(".toml")
    path.write_text(f'[run]\ntask = "{file}:Surrogate"\n[task]\nwidth = 4\n')
    settings = Given.read(str(path), ["--task.noise=2"]).settings()
    assert (settings.task.width, settings.task.noise) == (4, 2.0)


WRONG = {
    "missing.py:Surrogate": "there is no file",
    "FILE:Surogate": "has no Surogate; did you mean Surrogate",
    "FILE:Other": "is the class Other; wanted a class derived",
    "FILE:Rows": "is the class Rows; wanted a class derived",
    "FILE:SURROGATE": "has no SURROGATE",
    "FILE:numpy": "is a module; wanted a class derived",
    "FILE:Unfinished": "does not define samples",
    "FILE:late": "width of late has no default",
    "FILE": "wanted language or ",
    "languag": "did you mean language",
    "no_such_package.models:Task": "importing it raised ModuleNotFoundError",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_task_that_cannot_be_loaded_is_one_sentence(file, name):
    with pytest.raises(ConfigurationError, match=WRONG[name]) as caught:
        load_task(name.replace("FILE", str(file)))
    assert "\n" not in str(caught.value) and str(caught.value).startswith("run.task = ")


@pytest.mark.parametrize(
    "line, words",
    [
        ("1 / 0", r"raised ZeroDivisionError: division by zero \(line 2 of "),
        ("import sys; sys.exit(3)", "raised SystemExit: 3"),
        ("class T(", "raised SyntaxError"),
    ],
)
def test_a_file_that_raises_says_what_and_where(file, line, words):
    file.write_text(f"import shardkit\n{line}\n")
    with pytest.raises(ConfigurationError, match=words):
        load_task(f"{file}:Surrogate")


def test_a_field_that_no_file_can_hold_is_refused():
    with pytest.raises(ConfigurationError, match="Settings.table = .*; wanted int, float"):

        class Wrong(sk.Task):
            class Settings:
                table: dict = None

    with pytest.raises(ConfigurationError, match="Settings.width has no default"):

        class Late(sk.Task):
            class Settings:
                width: int


# ---- runs ----------------------------------------------------------------------------------------


def are_equal(first, second):
    found = [find_checkpoint(path)[0] for path in (first, second)]
    return compare(*found, tolerance=0.0).is_equal


@pytest.mark.thorough
def test_a_run_goes_on_in_mid_epoch_on_other_meshes_with_equal_bits(file, capsys):
    whole = given(file, f"--run.folder={file.parent / 'whole'}").settings()
    result = run(whole, 1)
    assert result.steps == 6 and result.shown == "prediction (1, 1)"
    said = capsys.readouterr().out.replace("\n", " ")
    assert "37 rows + 5 held out; 8 rows per step" in said and "rows/s" in said
    assert "volts squared" in said
    run(given(file, "--run.steps=3").settings(), 4)
    for steps, num_ranks, pipeline in ((4, 2, 1), (5, 2, 2), (6, 4, 2)):
        changes = {"run.steps": steps, "mesh.pipeline": pipeline}
        run(resumed(stored_settings(file.parent / "run"), changes), num_ranks, resume=True)
    assert are_equal(file.parent / "whole", file.parent / "run")


def test_the_task_of_a_run_is_stored_and_cannot_change(file):
    run(given(file, "--run.steps=1").settings(), 1)
    again = Given.read(None, [f"--run.folder={file.parent / 'run'}", "--run.steps=2"])
    settings, resume = again.of_run(True, False, bool)
    assert resume and settings.run.task == f"{file}:Surrogate" and settings.run.steps == 2
    other = given(file, name="surrogate")
    with pytest.raises(ConfigurationError, match="run.task = .*but this run goes on with"):
        other.of_run(True, False, bool)


def test_a_function_makes_a_task_and_its_parameters_are_settings(file):
    settings = given(file, "--task.width=5", "--run.steps=1", name="surrogate").settings()
    run(settings, 1)
    shapes = find_checkpoint(file.parent / "run")[0].shapes
    assert (2, 5) in shapes.values() or (5, 2) in shapes.values()
    with pytest.raises(ConfigurationError, match="no_task returned a int; wanted a Task"):
        run(given(file, name="no_task").settings(), 1)


def test_a_rank_that_cannot_read_tells_all_ranks(file):
    """Sample 3 cannot be read; the rank that has it in its part raises, the others too."""

    def start(backend):
        settings = given(file).settings()
        rows = type(settings.make_task().samples("training"))
        read = rows.read

        def fails(self, numbers):
            if 3 in numbers:
                raise CorpusError("row 3 is no number")
            return read(self, numbers)

        if backend.rank == 0:
            rows.read = fails
        backend.barrier()
        with pytest.raises(CorpusError, match="row 3 is no number"):
            train_run(settings, backend)

    sk.run_ranks(2, start)


def test_what_travels_with_a_model_is_in_its_checkpoints(file, monkeypatch):
    settings = given(file, "--run.steps=1").settings()
    monkeypatch.setattr(
        settings.task_class, "companions", lambda self: {"tokenizer.json": b"a tokenizer"}
    )
    run(settings, 2)
    assert find_checkpoint(file.parent / "run")[0].companions() == {
        "tokenizer.json": b"a tokenizer"
    }


def test_every_held_out_sample_counts_once_on_any_mesh(file, monkeypatch):
    """The loss of five samples, in batches of eight, is their mean; as are the metrics."""
    settings = given(file, "--run.steps=1").settings()
    expected = []

    class Seen(sk.Metric):
        def sums(self, prediction, y):
            return numpy.array([((prediction - y) ** 2).sum(), len(y)], numpy.float64)

        def value(self, sums):
            expected.append(sums)
            return sums[0] / sums[1]

    monkeypatch.setattr(settings.task_class, "metrics", {"mse": Seen()})
    for num_ranks in (1, 2, 4):
        folder = f"--run.folder={file.parent / str(num_ranks)}"
        result = run(given(file, "--run.steps=1", folder).settings(), num_ranks)
        assert expected[-1][1] == 5
        assert result.validation_loss == pytest.approx(expected[-1][0] / 5, rel=1e-6)
        records = (file.parent / str(num_ranks) / "metrics.jsonl").read_text()
        assert '"mse": ' in records


# ---- a language model with metrics ---------------------------------------------------------------


class Tokens(sk.Samples):
    """Sample k is a window of tokens that follows from k."""

    def __len__(self):
        return 20

    def read(self, numbers):
        windows = (numpy.asarray(numbers)[:, None] + 3 * numpy.arange(9)) % 61
        return windows[:, :-1], windows[:, 1:]

    def fingerprint(self):
        return "tokens"


class Right(sk.Metric):
    """Share of tokens that the model holds for the likeliest."""

    def sums(self, prediction, y):
        return numpy.array([(prediction.argmax(-1) == y).sum(), y.size], float)

    def value(self, sums):
        return sums[0] / sums[1]


class Measured(sk.Task):
    metrics = {"right": Right()}

    def make_model(self):
        return sk.models.GPT(61, 8, width=24, layers=1, heads=6, seed=3, dtype="float64")

    def samples(self, part):
        return Tokens()


@pytest.mark.parametrize("tensor", [2, 3])
@pytest.mark.thorough(but=1)
def test_loss_and_metrics_of_whole_logits_are_the_same_on_tensor_ranks(tmp_path, tensor):
    """The logits of a step are cut along the vocabulary; those that metrics see are whole."""
    results = []
    for name, ranks in (("one", 1), ("cut", tensor)):
        settings = {"mesh.tensor": ranks, "run.steps": 1, "run.folder": str(tmp_path / name)}
        chosen = first_settings(configuration_of(Measured), {**SMALL, **settings})
        results.append(run(chosen, ranks).validation_loss)
    assert results[0] == pytest.approx(results[1], rel=1e-9)
