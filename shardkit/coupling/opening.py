"""Opening a coupling: its options are checked on all ranks before the first sample."""

from collections.abc import Callable
from typing import Any

from ..arguments import is_integer
from ..comm.mpi.post import Post
from ..errors import ConfigurationError
from ..nn.module import Module
from .buffers import USUALLY, WHEN_FULL
from .coupled import Coupled
from .sides import Options, Sides

ON_LOSS = ("raise", "go_on")
PREDICT_ON = ("solver", "trainer")
_ALIKE = ("buffer", "buffer_bytes", "when_full", "seed")  # on all trainers


def coupled(
    comm: Any = None,
    trainers: int | None = None,
    *,
    buffer: str = "once",
    buffer_bytes: int = 1 << 28,
    when_full: str | None = None,
    seed: int = 0,
    predict_on: str = "solver",
    factory: Callable[..., Module] | None = None,
    on_loss: str = "raise",
    first_put: int = 0,
    in_flight: int = 4,
) -> Coupled:
    """Split a communicator into solver ranks and trainers, or let every rank be both.

    Collective over it, in all programs that share it.

    Parameters
    ----------
    comm
        An mpi4py communicator; None: all ranks that mpiexec or srun started, of several programs
        too.
    trainers
        The last so many ranks train, and the others solve; None: every rank does both in turn.
    buffer
        What a trainer reads of what was put. "once": each sample once, in the order of puts and,
        within a put, of ranks; "latest": each at most once, the newest first; "reservoir": a fair
        selection of all puts, again and again until the solver ends.
    buffer_bytes
        Of each trainer, for samples.
    when_full
        "wait": the solver waits; "drop_oldest", "drop_random": a sample that was not read is
        overwritten, and counted. None: "wait" for "once", "drop_oldest" for "latest". A reservoir
        is never full.
    seed
        Of what is drawn at random.
    predict_on
        "solver": each solver rank that predicts gets the models that are published; "trainer": x is
        sent to a trainer, and the output comes back.
    factory
        For predict(), where the model's class is not shardkit's and not imported there; see
        sk.load.
    on_loss
        On solver ranks, what follows if a trainer is lost: "raise", or "go_on" without a training,
        with a line on standard error.
    first_put
        On solver ranks that go on from a checkpoint of theirs: the num_puts that it was written at.
    in_flight
        Samples of a solver rank that may be under way, in memory of its own.

    Returns
    -------
    Coupled
        A context manager that closes it.

    Raises
    ------
    ConfigurationError
        On all ranks.
    """
    options = dict(locals())
    return opened(options.pop("comm"), options)


def opened(comm: Any, given: dict[str, Any], problem: str | None = None) -> Coupled:
    """Return what coupled() does for these options.

    problem   what this rank has found wrong itself, in words: all refuse it
    """
    post, trainers = Post(comm), given["trainers"]
    if given["when_full"] is None:
        given = {**given, "when_full": USUALLY.get(str(given["buffer"]))}
    problem = problem or _problem(given, post)
    facts = {} if problem else {name: given[name] for name in ("trainers", *_ALIKE)}
    told = post.parent.allgather((problem, facts))
    numbered = enumerate(problem for problem, _ in told)
    found = [f"rank {rank}: {problem}" for rank, problem in numbered if problem]
    found = found or _differences([facts for _, facts in told], trainers or post.size)
    if found:
        post.close()
        raise ConfigurationError(f"coupled(): {found[0]}")
    return Coupled(post, Sides.of(post.rank, post.size, trainers), Options(**given))


def _differences(facts: list[dict], num_trainers: int) -> list[str]:
    """Return what should be the same on all ranks, or on those that train, and is not."""
    asked = [("trainers", facts, f"ranks 0 ... {len(facts) - 1}")]
    asked += [(name, facts[-num_trainers:], "the trainers") for name in _ALIKE]
    return [
        f"{name} = {[each[name] for each in some]} on {where}; wanted the same on all"
        for name, some, where in asked
        if len({each[name] for each in some}) > 1
    ]


def _problem(options: dict[str, Any], post: Post) -> str | None:
    """Return what is wrong on this rank, in words; None: nothing."""
    trainers, size = options["trainers"], post.size
    if trainers is not None and not (is_integer(trainers) and 0 < trainers < size):
        return (
            f"trainers = {trainers!r} of {size} ranks; wanted 1 ... {size - 1}, so that a rank is "
            "left to solve, or None: every rank does both"
        )
    if trainers is not None and post.rank >= size - trainers and not post.takes_threads:
        return (
            "a trainer receives in a thread beside its training, and this program has initialized "
            "MPI below MPI_THREAD_MULTIPLE; wanted that level, or trainers=None"
        )
    choices: dict[str, tuple[str, ...]] = {"buffer": tuple(USUALLY), "on_loss": ON_LOSS}
    choices["predict_on"] = PREDICT_ON
    if options["buffer"] != "reservoir":
        choices["when_full"] = WHEN_FULL
    elif options["when_full"] is not None:
        return f"when_full = {options['when_full']!r}: a reservoir is never full; leave it out"
    for name, wanted in choices.items():
        if options[name] not in wanted:
            return f"{name} = {options[name]!r}; wanted {' or '.join(map(repr, wanted))}"
    for name, least in {"buffer_bytes": 1, "seed": 0, "first_put": 0, "in_flight": 1}.items():
        if not is_integer(options[name]) or options[name] < least:
            return f"{name} = {options[name]!r}; wanted a whole number, at least {least}"
    return None
