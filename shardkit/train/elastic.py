"""ElasticTraining: training that continues when ranks die.

    training = sk.ElasticTraining(make_model, work, checkpoints="runs/big/checkpoints")
    training.run()                                  # mpiexec --with-ft ulfm -n 8 ...

8 ranks train, rank 5 dies, 7 live: 6 form a mesh and 1 is a spare. The state comes from the copies
that neighbors keep (parallel/pipeline/neighbors.py), at most a step old.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..annotations import FilePath
from ..arguments import is_integer, is_number, require
from ..comm.backend import CommunicationBackend
from ..comm.failure.program import Program, report_failure
from ..comm.mpi.elastic import LivingRanks
from ..comm.ranks import ranks_text
from ..errors import CheckpointError, ConfigurationError
from ..files.paths import usable_path
from ..layout.mesh_shape import MeshShape
from ..parallel.model.sharded_model import ShardedModel, parts_of
from ..parallel.pipeline.neighbors import Neighbors, restore
from ..plain import counted
from .log import seconds_text


@dataclass(frozen=True)
class Recovery:
    """How the other ranks continued after a death.

    died         ranks by their numbers at the start
    num_living   ranks; num_training of them make the new mesh, the others are spares
    step         of the model now
    source       "memory" or "checkpoint"
    seconds      from when this rank noticed it to when training went on
    """

    died: tuple[int, ...]
    num_living: int
    num_training: int
    step: int
    source: str
    seconds: float

    def __str__(self):
        spares = self.num_living - self.num_training
        waiting = (
            f", {spares} wait{'s' if spares == 1 else ''} as spare{'' if spares == 1 else 's'}"
            if spares
            else ""
        )
        return (
            f"rank{'s' if len(self.died) > 1 else ''} {ranks_text(self.died)} died; "
            f"{self.num_living} live, {self.num_training} of them train{waiting}; state of step "
            f"{self.step} from {self.source}; {seconds_text(self.seconds)}"
        )


class Deaths:
    """The ranks that died, as far as this one knows.

    num_lost   in all
    """

    def __init__(self):
        self.num_lost = 0
        self._since: float | None = None  # when this rank noticed the first that is not recovered
        self._ranks: list[int] = []  # of these

    def notice(self) -> None:
        """Let the time to the recovery begin, if it has not yet."""
        self._since = self._since or time.perf_counter()

    def add(self, ranks: list[int]) -> None:
        """Count these, by their numbers at the start."""
        self._ranks += ranks
        self.num_lost += len(ranks)

    def recovery(self, num_living: int, num_training: int, step: int, source: str) -> Recovery:
        """Return how the others go on."""
        assert self._since is not None
        seconds = time.perf_counter() - self._since
        died = tuple(sorted(self._ranks))
        return Recovery(died, num_living, num_training, step, source, seconds)

    def settle(self) -> None:
        """Count what dies from now on as another loss: training goes on."""
        self._since, self._ranks = None, []


@dataclass(frozen=True)
class Life:
    """The time from one death to the next.

    number      of this life
    is_first    training has not begun
    """

    number: int = 0
    is_first: bool = True

    def next(self, living: CommunicationBackend) -> "Life":
        """Return the life that follows, the same on all ranks: some may have met more failures on
        the way than others. Collective.
        """
        lives = living.all_gather_object((self.number + 1, self.is_first))
        return Life(max(number for number, _ in lives), all(is_first for _, is_first in lives))


@dataclass(frozen=True)
class Watch:
    """How the calls of all living ranks are watched.

    timeout   seconds that one may take
    folder    for the ledgers of all ranks; None: a temporary one
    """

    timeout: float
    folder: Path | None

    def over(self, living: CommunicationBackend) -> None:
        """Watch over the calls of these ranks. No communication."""
        living.timeout = self.timeout
        if self.folder is not None:
            living.keep_ledger(self.folder)


class ElasticTraining:
    """Training that goes on in the same job, on a smaller mesh or with spare ranks, when ranks die.

    Parameters
    ----------
    make_model
        Function (backend) -> ShardedModel on a mesh of these ranks, which may be fewer than were
        started.
    work
        Function (model, commit) -> result: trains from model.step_number on, and calls commit()
        after each step. Called again, with another model, after a loss.
    pipeline, tensor
        Ranks of the mesh that stay as they are; the data axis shrinks.
    num_training
        Function (number of the living) -> how many of them make the mesh, 0 if too few; None: all
        whole replicas. The rest are spares, who take the places of the dead.
    checkpoints
        Folder, or several, with what the copies in memory do not have; None: the job ends then.
    every
        Steps between two copies to the neighbor: so many may be lost.
    timeout
        Seconds that one call may take before the job is ended with a report, and that a process may
        be stopped before it is ended, so that the others go on.
    ledger
        Folder for the ledgers of all ranks (comm/watch/ledger.py); None: a temporary one.
    say
        Function (text), on every rank that trains, about each loss.
    domain
        As pipeline and tensor.

    Notes
    -----
    Making it is collective over all ranks that were started; make no other backend. Where MPI
    cannot outlive a rank (`why_not` says so) everything else holds, spares included, but a death
    ends the job, for the job script to start again. The trained bits do not depend on the deaths if
    each mesh leaves its data ranks a power-of-two number of micro-batches.
    """

    def __init__(
        self,
        make_model: Callable[[CommunicationBackend], ShardedModel],
        work: Callable,
        *,
        pipeline: int = 1,
        tensor: int = 1,
        num_training: Callable[[int], int] | None = None,
        checkpoints: FilePath | tuple[FilePath, ...] | None = None,
        every: int = 1,
        timeout: float = 600.0,
        ledger: FilePath | None = None,
        say: Callable[[str], None] | None = None,
        domain: int = 1,
    ) -> None:
        for name, function in (("make_model", make_model), ("work", work)):
            require(callable(function), name, function, "a function")
        require(is_integer(every, at_least=1), "every", every, "an integer, at least 1, in steps")
        require(
            is_number(timeout, above=0), "timeout", timeout, "a finite number above 0, in seconds"
        )
        self._make_model, self._work = make_model, work
        replica = self._replica = MeshShape(pipeline=pipeline, domain=domain, tensor=tensor).size
        self._num_training = num_training or (lambda living: living // replica * replica)
        self._checkpoints = checkpoints
        self._every = every
        folder = usable_path(ledger)
        self._watch = Watch(timeout, None if folder is None else Path(folder))
        self._say = say or (lambda text: None)
        self._ranks = LivingRanks()
        self._copies: list[Neighbors] = []
        self._life = Life()
        self._deaths = Deaths()
        self.program = Program()  # what a message about an error says beside it; to be filled in
        self.recoveries: list[Recovery] = []  # on ranks that trained after them

    @property
    def backend(self) -> CommunicationBackend:
        """The backend of all surviving ranks; a new one after each death."""
        return self._ranks.backend

    @property
    def why_not(self) -> str | None:
        """Why a death ends the job here; None if it does not."""
        return self._ranks.why_not

    @property
    def started_rank(self) -> int:
        """The rank of this process among all started ranks."""
        return self._ranks.started_rank

    @property
    def is_new(self) -> bool:
        """True until training has begun: make_model() then makes the first model.

        The same on all ranks.
        """
        return self._life.is_first

    @property
    def num_lost(self) -> int:
        """The ranks that have died, as far as this one knows."""
        return self._deaths.num_lost

    def run(self) -> Any:
        """Return what work() returns; None on spare ranks. Collective over the survivors.

        Raises
        ------
        ConfigurationError
            End the job, or all ranks alike by SystemExit, as in abort_on_error: if too few live for
            a mesh.
        CheckpointError
            End the job, or all ranks alike by SystemExit, as in abort_on_error: if the state is
            lost, and those of the functions.
        """
        while True:
            try:
                return self._live()
            except (Exception, SystemExit) as error:
                if isinstance(error, SystemExit) and not error.code:
                    raise
                if not self._ranks.tells_of_death(error):
                    raise SystemExit(report_failure(self.backend, error, self.program)) from None
                self._deaths.notice()
            gc.collect()  # the model of the last life, before there is another
            self._deaths.add(self._ranks.repair())

    def _live(self):
        """Train from one death to the next, or to the end."""
        living = self._ranks.backend
        self._life = self._life.next(living)
        num = self._num_training(living.world_size)
        self._watch.over(living)
        if num < 1:
            raise ConfigurationError(
                f"{counted(living.world_size, 'rank')} left, too few for a mesh with "
                f"{self._replica} in each data replica; start again on another layout (shardkit "
                "train --resume --mesh.pipeline=... --mesh.tensor=...): the checkpoints load there"
            )
        group = living.split(0 if living.rank < num else None)
        model = None if group is None else self._make_model(group)
        if not self._life.is_first:
            self._recover(living, model, num)
        self._life = replace(self._life, is_first=False)
        result = None if model is None else self._train(model)
        # Where spares wait, and where nobody leaves before all are done.
        living.exchange_within(None, None)
        return result

    def _recover(self, living, model, num):
        """Restore the state. Collective over the survivors."""
        step, source = restore(living, self._copies, model and parts_of(model)), "memory"
        if step is None:
            step, source = self._load(model), "checkpoint"
        if model is not None:
            recovery = self._deaths.recovery(living.world_size, num, step, source)
            self.recoveries.append(recovery)
            self._say(str(recovery))
        self._deaths.settle()

    def _load(self, model) -> int | None:
        """Load the newest checkpoint and return its step. Collective over the model's mesh."""
        try:
            if self._checkpoints is None:
                raise FileNotFoundError("no folder for checkpoints was given")
            return None if model is None else model.load_model(self._checkpoints)["step"]
        except FileNotFoundError as error:
            raise CheckpointError(
                "ranks died together with the neighbors that had copies of their parts, and there "
                f"is no checkpoint: {error}; start again, with checkpoints closer together"
            ) from error

    def _train(self, model):
        if self.why_not:
            return self._work(model, lambda: None)
        copies = Neighbors(parts_of(model), self._life.number)
        copies.commit()
        self._copies.append(copies)
        model.mesh.world.barrier()  # all have the new copies: nobody needs the old ones
        self._copies = [copies]

        def commit():
            if model.step_number % self._every == 0:
                copies.commit()

        try:
            return self._work(model, commit)
        finally:
            parts_of(model).checkpoints.saver.abandon()
