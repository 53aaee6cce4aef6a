"""`shardkit evaluate` and `shardkit predict`."""

import argparse
import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from ..comm.failure.agreement import collectively
from ..comm.same import check_same
from ..errors import ConfigurationError
from ..files.shown import shown
from ..files.trust import Trust
from ..files.writing import write_whole
from ..plain import plain
from ..task.task import Task
from ..train.evaluation import TrainedRun, evaluate
from ..train.folder import no_run_in, stored_task, task_of_run
from ..train.prediction import check_output, predict
from ..train.settings import configuration_of
from .arguments import add_averaged, add_checkpoint, add_trust, local_path, option
from .job import job, mpi_backend
from .settings import parsed, texts_of, trust_in

_EVALUATE = """measure loss and metrics of a run on any data

Measure loss and metrics of a checkpoint of a run:
  mpiexec -n 4 shardkit evaluate RUN --data test.h5 [--mesh.pipeline=2 ...]"""
_PREDICT = """write what a run predicts for each row

Write the predictions of a checkpoint of a run, in the order of the rows:
  mpiexec -n 4 shardkit predict RUN --data new.h5 --output out.h5"""


def add_commands(add_command) -> None:
    """Add the parsers of both commands."""
    both = argparse.ArgumentParser(add_help=False)
    option(both, "path", "run folder", type=local_path)
    option(both, "--data PATH", "source; default: what the run held out")
    add_checkpoint(both)
    add_averaged(both)
    add_trust(both)
    measure = add_command("evaluate", _evaluate, _EVALUATE, takes_settings=True, parents=[both])
    option(measure, "--json FILE", "also write the figures to this file")
    write = add_command("predict", _predict, _PREDICT, takes_settings=True, parents=[both])
    option(write, "--output FILE", "HDF5 file to write", required=True)


def _trust(known, overrides) -> Trust:
    return trust_in(known.trust, texts_of(overrides).get("run.task"))


def _task_of(known, trust: Trust) -> type[Task]:
    folder = Path(known.path)
    if stored_task(folder) is None:
        raise no_run_in(folder)
    return task_of_run(folder, trust)


def _run_of(known, given: dict, trust: Trust, backend) -> TrainedRun:
    """Return the run at the checkpoint that is asked for, and say which it is. Collective."""
    how = {"averaged": known.averaged, "trust": trust, "checkpoint": known.checkpoint}
    run = TrainedRun(Path(known.path), given, backend, **how)
    if backend.rank == 0:
        print(shown(run.chosen))
    return run


def _evaluate(known, overrides) -> int:
    backend = mpi_backend()
    with job(backend):
        with collectively(backend):
            trust = _trust(known, overrides)
            given = parsed(overrides, configuration_of(_task_of(known, trust)))
        run = _run_of(known, given, trust, backend)
        figures = evaluate(run, run.samples(known.data))
        with collectively(backend):
            if backend.rank == 0:
                _show(run, figures)
                if known.json:
                    record = run.task.loss_record(figures.loss)
                    write_whole(known.json, _as_json(figures, record).encode())
        run.close()
    return 0


def _as_json(figures, record: dict[str, float]) -> str:
    """Return the figures, with what is said of the loss, as JSON; null in place of NaN."""
    metrics = {name: _or_none(value) for name, value in figures.metrics.items()}
    of_loss = {name: _or_none(value) for name, value in record.items()}
    content = {**asdict(figures), "loss": _or_none(figures.loss), **of_loss, "metrics": metrics}
    return json.dumps(plain(content), indent=1) + "\n"


def _or_none(value: float) -> float | None:
    return value if isfinite(value) else None


def _show(run: TrainedRun, figures) -> None:
    metrics = "".join(f"  {name} {value:.6g}" for name, value in figures.metrics.items())
    line = (
        f"step {figures.step}  {figures.samples:,} {run.task.sample}  "
        f"loss {run.task.describe_loss(figures.loss)}{metrics}"
    )
    print(shown(line))


def _predict(known, overrides) -> int:
    backend = mpi_backend()
    with job(backend):
        output = Path(known.output)
        with collectively(backend):
            trust = _trust(known, overrides)
            task = _task_of(known, trust)
            _check_predicts(known.path, task)
            given = parsed(overrides, configuration_of(task))
            check_output(output)
        check_same(backend, {"--output": repr(str(output.resolve()))})
        run = _run_of(known, given, trust, backend)
        shapes = predict(run, run.samples(known.data, has_targets=False), output)
        if backend.rank == 0:
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            print(shown(f"step {run.step}  {output}: {listed}"))
        run.close()
    return 0


def _check_predicts(path: str, task: type[Task]) -> None:
    """Raise ConfigurationError if the task of this run has no predictions to write."""
    if task.instead_of_predict:
        raise ConfigurationError(
            f"{path} is a run of {task.__name__}, which has nothing to write for each row; use "
            f"`{task.instead_of_predict} {path}`"
        )
