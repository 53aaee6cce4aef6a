"""sk.Ensemble: many trainings side by side, on groups of the ranks of one job.

    ranks 0 1 2 3, groups = 2     0 1: trial 0, trial 2, ...       2 3: trial 1, trial 3, ...

    ensemble = sk.Ensemble(make, [{"run.seed": seed} for seed in range(12)], groups=2,
                           folder="runs/ensemble")
    ensemble.run()                              # mpiexec -n 4 python script.py; the same to go on
    ensemble.predict(x, "out.h5")               # mean and spread over the trials

sweep.h5 of the folder has what is known (record.py), trials/0003 is a run folder as any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from ..annotations import FilePath
from ..comm.backend import CommunicationBackend
from ..comm.failure.agreement import collectively
from ..comm.failure.program import abort_on_error
from ..comm.failure.signals import StopSignals
from ..comm.mpi.backend import MPICommunicationBackend
from ..comm.same import alike, facts_of
from ..errors import ConfigurationError, ShardingError, StopVoted
from ..files.notes import settle_output
from ..files.paths import lasting_path, usable_path
from ..refusal import check_made, check_usable
from ..task.task import Task
from ..train.agreement import SAME_SETTINGS, facts_of_place
from ..train.keeping import KeptFolder
from ..train.training import Training
from .asking import Study
from .comparing import Exchange, Halving
from .desk import Book, LeaderDesk, Line
from .group import TrialGroup
from .prediction import predict
from .record import SweepRecord, read_record
from .settings import (
    check_common,
    check_groups,
    check_same,
    check_trial,
    first_trials,
    sweep_of,
)
from .space import Space, storable
from .trials import FAILED, FINISHED, WAITING, Trial

_FREE = ("folder", "groups", "trials", "retry")  # what may change where an ensemble goes on


class Ensemble:
    """Trainings that differ in their settings, each on a group of ranks.

    Parameters
    ----------
    make
        A class derived from Task, or the name of a task; or a function (settings, *, folder,
        backend, callbacks) that returns the sk.Training of a trial, made with all of them.
    settings
        Of each trial {"section.key": value}; or one such table for all, in which a list has the
        values that are tried, and {"log": [low, high]} or {"uniform": [low, high]} a range.
    groups
        Of ranks, as many in each; a trial is trained by one group.
    folder
        Of the ensemble; one that is there goes on.
    backend
        None: MPI, and an error ends the job, as in sk.Training.
    **options
        trials, seed: how many are drawn, and from which seed; without, every combination of lists.
        compare_at, keep, exchange: steps at which trials are compared, by their validation there;
        the share that goes on, 0.5; True: the others go on too, with the weights of those.
        sampler, pruner: classes of Optuna that draw trials, and end them at compare_at instead of
        `keep`. retry: trials that have failed before are trained again.

    Raises
    ------
    ConfigurationError
        On what is none of this; among several ranks run() raises it, on all of them.
    """

    def __init__(
        self,
        make: str | type[Task] | Callable[..., Training],
        settings: Sequence[dict[str, Any]] | dict[str, Any],
        *,
        groups: int,
        folder: FilePath,
        backend: CommunicationBackend | None = None,
        **options: Any,
    ) -> None:
        self._backend = backend
        self._trials: tuple[Trial, ...] = ()
        self._is_complete = False
        options |= {"folder": lasting_path(folder), "groups": groups}
        num_ranks = None if backend is None else backend.world_size
        check_made(self, lambda: self._configure(make, settings, options), num_ranks)

    def _configure(self, make, settings, options: dict[str, Any]) -> None:
        """Set how trials are made, and which there are. Errors: ConfigurationError."""
        self._sweep = sweep_of(options)
        is_task = isinstance(make, str) or isinstance(make, type) and issubclass(make, Task)
        if not is_task and not callable(make):
            raise ConfigurationError(
                f"make = {make!r:.100}; wanted a Task, the name of a task, or a function that "
                "returns the sk.Training of a trial"
            )
        self._make = partial(_training_of, partial(Training, make) if is_task else make)
        self._space = Space.of(settings) if isinstance(settings, dict) else None
        self._first = first_trials(settings, self._space, self._sweep)
        drawn = [] if self._space is None else [Trial(0, self._space.draw(self._sweep.seed, 0))]
        check_common(self._first or drawn)
        for trial in self._first or drawn if is_task else ():
            check_trial(make, trial, self._sweep.compare_at)

    # ---- training --------------------------------------------------------------------------------

    def run(self) -> tuple[Trial, ...]:
        """Train all trials to their ends and return them, from where the folder says. Collective.

        A job that is told to stop saves each trial and ends with exit code 75, or returns where
        the backend is one's own; start it again to go on.

        Notes
        -----
        Errors, on all ranks: ConfigurationError, MeshError, OSError. Those of a trial are in it.
        """
        signals = StopSignals().listen()
        if self._backend is not None:
            try:
                return self._run(self._backend, signals)
            finally:
                signals.leave()
        self._backend = MPICommunicationBackend()
        self._backend.initialize()
        with abort_on_error(self._backend):
            trials = self._run(self._backend, signals)
        if not self._is_complete:
            signals.ignore()
            settle_output()
            raise SystemExit(StopVoted.exit_code)
        signals.leave()
        return trials

    def _run(self, backend: CommunicationBackend, signals: StopSignals) -> tuple[Trial, ...]:
        if not backend.is_initialized:
            backend.initialize()
        with alike(backend, SAME_SETTINGS) as facts:
            check_usable(self)
            folder = Path(self._sweep.folder)
            facts |= facts_of_place(folder) | facts_of(asdict(self._sweep))
            facts |= facts_of({"the settings of the trials": [t.settings for t in self._first]})
            check_groups(backend.world_size, self._sweep.groups)
        with KeptFolder(folder) as kept:
            kept.own(backend)
            with collectively(backend):
                record = None if backend.rank else self._found()
            worked = self._worked(backend, signals, folder, record)
            self._trials, self._is_complete = worked
        return self._trials

    def _worked(
        self, backend, signals: StopSignals, folder: Path, record: SweepRecord | None
    ) -> tuple[tuple[Trial, ...], bool]:
        """Let all groups work; return the trials, and whether none is left to run. Collective.

        record   of the trials, on rank 0
        """
        number = backend.rank * self._sweep.groups // backend.world_size
        group = backend.split(number)
        leaders = backend.split(0 if group.rank == 0 else None)
        desk = None
        with collectively(backend):
            leader = None if leaders is None else self._leader(leaders, record)
            desk = leader if isinstance(leader, LeaderDesk) else None
        TrialGroup(group, leader, self._make, folder, signals).work()
        with collectively(backend):
            worked = None if desk is None else desk.close()
        if leaders is not None:
            leaders.close()
        group.close()
        return backend.broadcast_object(worked)

    def _leader(
        self, leaders: CommunicationBackend, record: SweepRecord | None
    ) -> Line | LeaderDesk:
        if record is None:
            return Line(leaders, 0)
        others = range(1, leaders.world_size)
        return LeaderDesk(self._book(record), {group: Line(leaders, group) for group in others})

    def _book(self, record: SweepRecord) -> Book:
        sweep, folder = self._sweep, Path(self._sweep.folder)
        first = len(self._first)
        if sweep.sampler is None and sweep.pruner is None:
            rule = Exchange if sweep.exchange else Halving
            return Book(folder, record, rule(sweep.compare_at, sweep.keep), first)
        assert self._space is not None  # first_trials() has asked for one
        study = Study(sweep, self._space, record.trials)
        total = first if sweep.sampler is None else sweep.trials or 0
        return Book(folder, record, study, total, None if sweep.sampler is None else study.ask)

    def _found(self) -> SweepRecord:
        """Return the record of the folder, or a first one. Errors: ConfigurationError."""
        sweep = self._sweep
        about = {name: value for name, value in asdict(sweep).items() if name not in _FREE}
        about = {name: storable(name, value) for name, value in about.items()}
        found = read_record(Path(sweep.folder)) or SweepRecord(about, [], {})
        check_same(found, about, self._first, sweep)
        trials = found.trials + self._first[len(found.trials) :]
        for trial in trials if sweep.retry else ():
            if trial.status == FAILED:
                trials[trial.number] = replace(trial, status=WAITING, error="")
        return replace(found, trials=trials)

    # ---- afterwards ------------------------------------------------------------------------------

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What is known of the trials, by their numbers; after run().

        Raises
        ------
        ShardingError
            Before run().
        """
        if not self._trials:
            raise ShardingError("this ensemble has no trials yet; call run() first")
        return self._trials

    @property
    def is_complete(self) -> bool:
        """True after run(), if no trial is left to run: it was not told to stop before."""
        return self._is_complete

    @property
    def best(self) -> Trial:
        """The finished trial of the lowest validation loss; after run().

        Raises
        ------
        ShardingError
            If none has finished.
        """
        return self._finished()[0]

    def predict(
        self, data: Any, output: FilePath, *, best: int | None = None
    ) -> dict[str, numpy.ndarray]:
        """Write mean and spread of the trials' outputs into an HDF5 file; return its datasets,
        those of more than 64 MiB mapped. Collective.

        Parameters
        ----------
        data
            As for Training.predict: samples, a pair x, y, or x alone.
        output
            The HDF5 file to write: for each output NAME_mean and NAME_spread, in its dtype, and
            the spread is the standard deviation over the trials, n - 1 in its denominator.
        best
            Only so many trials, those of the lowest validation loss; None: all that have finished.

        Raises
        ------
        ShardingError
            If fewer than two have finished.
        """
        chosen = self._finished()[:best]
        if len(chosen) < 2:
            raise ShardingError(f"{len(chosen)} trials have finished; a spread wants two or more")
        assert self._backend is not None
        runs = {trial.number: trial.settings for trial in chosen}
        how = self._backend, self._sweep.groups, self._make, Path(self._sweep.folder)
        return predict(*how, runs, data, Path(usable_path(output)))

    def _finished(self) -> list[Trial]:
        done = [trial for trial in self.trials if trial.status == FINISHED]
        if not done:
            raise ShardingError("no trial of this ensemble has finished")
        return sorted(done, key=lambda trial: trial.rank)


def _training_of(make: Callable[..., Any], settings: dict[str, Any], **place: Any) -> Training:
    """Return the training of a trial. Errors: ConfigurationError, and those of `make`."""
    training = make(settings=settings, **place)
    if not isinstance(training, Training):
        raise ConfigurationError(
            f"make returned a {type(training).__name__}; wanted the sk.Training of a trial, made "
            "with the folder, backend and callbacks that it was given"
        )
    return training
