"""mpiexec -n N python guest_rank.py KEY=VALUE...: a program under MPI that trains for a while,
beside its own messages, and goes on.

work       train, couple (the last rank trains; at lower thread levels all do both), or sweep
first      mpi4py or shardkit: which of them is imported first
failing    raise or abort: what follows a failure; "": what shardkit chooses
comm       world, half (but for the first rank, which imports no shardkit), or none: shardkit's own
level      the thread level, if the program initializes MPI itself; "": mpi4py does
finalize   program, exit, or never
shutdown   yes or no: the backend is left as it is
end        return, exit, or abort: how the last rank ends
fails      no, ready, trained, or finalize: where the last rank is lost
how        kill; or how its program ends: exit, error; or sleep, beyond the limit of a call
on_loss    of a coupling: what its solver ranks do
others     barrier, split, close, common, or shutdown: what the others call meanwhile
go_on      yes: the others train again without it
"""

import ctypes
import os
import signal
import sys
import time
from contextlib import nullcontext
from functools import partial

import numpy

DEFAULTS = {
    "work": "train",
    "first": "mpi4py",
    "failing": "",
    "comm": "world",
    "level": "",
    "finalize": "program",
    "shutdown": "yes",
    "end": "return",
    "fails": "no",
    "how": "kill",
    "on_loss": "raise",
    "others": "barrier",
    "go_on": "no",
}
PLOT_SECONDS = 3.0  # more than a warden leaves a rank of a job that is ending
CALL_SECONDS = 6.0
AHEAD_SECONDS = 1.0  # until the others wait for the rank that dies


def main(given):
    form = DEFAULTS | given
    MPI = start(form)
    world = MPI.COMM_WORLD
    is_last = world.rank == world.size - 1
    trains = form["comm"] != "half" or world.rank > 0
    comm = world.Split(int(trains), world.rank) if form["comm"] == "half" else world
    reach = partial(lose_at, form)
    if trains and form["go_on"] == "yes":
        train_without_the_lost(form, comm, reach)
    elif trains:
        is_guest = form["comm"] != "none"
        work = partial(WORKS[form["work"]], form, comm, reach)
        beside_own_messages(MPI, comm, work, is_guest=is_guest)
    if form["fails"] in ("no", "finalize"):
        world.Barrier()
    if form["fails"] == "finalize":
        kill_in_finalize(MPI, is_last)
    if is_last and form["end"] == "abort":
        world.Abort(3)
    if is_last and form["end"] == "exit":
        say(world.rank)
        sys.exit(0)
    rank = world.rank
    if form["finalize"] == "program":
        MPI.Finalize()
        time.sleep(PLOT_SECONDS)
    say(rank)


def say(rank):
    print(f"rank {rank} reached its end", flush=True)


def start(form):
    import mpi4py

    if form["finalize"] == "never":
        mpi4py.rc.finalize = False
    if form["first"] == "shardkit":
        import shardkit as sk

        backend = sk.MPICommunicationBackend()  # which initializes MPI
        backend.initialize()
        backend.shutdown()
    if form["level"]:
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = form["finalize"] == "exit"
    from mpi4py import MPI

    if form["level"]:
        MPI.Init_thread(getattr(MPI, f"THREAD_{form['level'].upper()}"))
    return MPI


def train(form, comm, reach):
    import shardkit as sk

    given = None if form["comm"] == "none" else comm
    backend = sk.MPICommunicationBackend(given, on_failure=form["failing"] or None)
    backend.initialize()
    reach("ready")
    model = sk.FSDPModel(sk.models.MLP([8, 16, 1]), sk.ShardingConfiguration(backend))
    x, y = numpy.ones((12, 8), "float32"), numpy.ones((12, 1), "float32")
    losses = [model.train(*sk.split_batch(model.mesh, x, y)) for _ in range(3)]
    assert losses[2] < losses[0]
    backend.timeout = CALL_SECONDS  # from here on: what comes before compiles
    calls = {
        "barrier": backend.barrier,
        "split": partial(backend.split, 0, backend.rank),
        "close": backend.split(0, backend.rank).shutdown,
        "common": partial(backend.common, 100, "float32"),
        "shutdown": backend.shutdown,
    }
    reach("trained")
    if form["fails"] != "no":
        calls[form["others"]]()
    if form["shutdown"] == "yes":
        backend.shutdown()


def couple(form, comm, reach):
    """Put and train; the trainer, or the last rank where all do both, may be lost."""
    import shardkit as sk

    is_shared = form["level"] not in ("", "multiple")
    c = sk.coupled(comm, None if is_shared else 1, on_loss=form["on_loss"])
    reach("ready")
    given = sk.ShardingConfiguration(c.backend)
    model = sk.FSDPModel(sk.models.MLP([8, 16, 1]), given) if c.is_trainer else None
    with c if form["shutdown"] == "yes" else nullcontext():
        try:
            solve(c, model, reach) if c.is_solver else learn(c, model, reach)
        except sk.CommunicationError as error:
            print(f"told: {error}", flush=True)
            raise


def solve(c, model, reach):
    for step in range(24):
        c.put(x=numpy.full(8, step, "float32"), y=numpy.ones(1, "float32"))
        for part in c.batches(model, 12) if c.is_trainer else ():
            model.train(*part)
            reach("trained")
    c.finish()


def learn(c, model, reach):
    for part in c.batches(model, 12):
        model.train(*part)
        c.publish(model)
        reach("trained")


def sweep(form, comm, reach):
    """Train three trials, on as many groups as there are ranks."""
    import shardkit as sk

    class Loss(sk.Callback):
        def after_step(self, step, loss):
            reach("trained")

    def make(settings, callbacks, **place):
        model = sk.models.MLP([8, 16, 1], seed=settings["run.seed"])
        given = {"run.steps": 4, "batch.sequences": 4, **settings}
        data = numpy.ones((12, 8), "float32"), numpy.ones((12, 1), "float32")
        return sk.Training(model, data, settings=given, callbacks=[*callbacks, Loss()], **place)

    given = None if form["comm"] == "none" else comm
    backend = sk.MPICommunicationBackend(given, on_failure=form["failing"] or None)
    backend.initialize()
    reach("ready")
    folder = os.path.join(os.environ["TMPDIR"], "sweep")
    seeds = [{"run.seed": seed} for seed in range(3)]
    options = {"groups": backend.world_size, "folder": folder, "backend": backend}
    trials = sk.Ensemble(make, seeds, **options).run()
    assert [trial.status for trial in trials] == ["finished"] * 3, trials
    if form["shutdown"] == "yes":
        backend.shutdown()


WORKS = {"train": train, "couple": couple, "sweep": sweep}


def lose_at(form, place):
    """End this rank here, if it is the last one and is to be lost here."""
    from mpi4py import MPI

    if form["fails"] == place and MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        time.sleep(AHEAD_SECONDS)
        print(f"lost at {time.time()}", flush=True)
        lose(form["how"])


def lose(how):
    """End this rank."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "error":
        raise KeyError("lost")
    if how == "sleep":
        time.sleep(600)
    sys.exit(0)


def train_without_the_lost(form, comm, reach):
    """Train, and again when the last rank is lost, on a communicator without it."""
    import shardkit as sk

    try:
        train(form, comm, reach)
    except sk.CommunicationError as error:
        assert f"rank {comm.size - 1} is missing" in str(error), error
        print("told", flush=True)
    if form["how"] == "kill":
        others = comm.Shrink()  # of an MPI that goes on
    else:
        others = comm.Create_group(comm.Get_group().Excl([comm.size - 1]))
    train(form | {"fails": "no"}, others, reach=lambda place: None)
    print("went on", flush=True)


def beside_own_messages(MPI, comm, work, *, is_guest):
    """Work while the program has a message of its own under way, and compare what it had before."""
    from_left, to_right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    received = numpy.zeros(1)
    request = comm.Irecv(received, MPI.ANY_SOURCE, MPI.ANY_TAG)  # takes the first message there is
    handler = MPI.Comm.Create_errhandler(lambda comm, error: None)
    comm.Set_errhandler(handler)
    keyval = MPI.Comm.Create_keyval()
    comm.Set_attr(keyval, "of the host")
    before = of_host(MPI, comm, keyval)
    work()
    after = of_host(MPI, comm, keyval)
    if not is_guest:  # shardkit says how a program of its own fails
        after["excepthook"] = before["excepthook"]
    assert after == before, f"{before} became {after}"
    comm.Send(numpy.full(1, comm.rank + 0.5), to_right, 7)
    request.Wait()
    assert received[0] == from_left + 0.5
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    comm.Delete_attr(keyval)


def of_host(MPI, comm, keyval):
    handlers = [MPI.COMM_WORLD.Get_errhandler(), MPI.COMM_SELF.Get_errhandler()]
    here = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE)
    return {
        "error handlers": [handler.py2f() for handler in (*handlers, comm.Get_errhandler())],
        "attribute": comm.Get_attr(keyval),
        "communicator": (comm.rank, comm.size, comm.name, comm.topology),
        "thread level": (MPI.Query_thread(), MPI.Is_thread_main()),
        "signals": [signal.getsignal(number) for number in here],
        "signals in C": [action_of(number) for number in here],
        "excepthook": sys.excepthook,
        "folder": os.getcwd(),
        "threads of libraries": [os.environ.get(name) for name in ("OMP_NUM_THREADS",)],
    }


def action_of(number):
    """Return the function that the system calls for a signal, which begins its sigaction."""
    action = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).sigaction(number, None, action)
    return int.from_bytes(action.raw[:8], sys.byteorder)


def kill_in_finalize(MPI, is_last):
    """Let the first rank kill the last one, which waits for it in MPI_Finalize."""
    process = MPI.COMM_WORLD.bcast(os.getpid(), MPI.COMM_WORLD.size - 1)
    if not is_last:
        time.sleep(AHEAD_SECONDS)
    if MPI.COMM_WORLD.rank == 0:
        print(f"lost at {time.time()}", flush=True)
        os.kill(process, signal.SIGKILL)
        time.sleep(AHEAD_SECONDS)


if __name__ == "__main__":
    main(dict(argument.split("=") for argument in sys.argv[1:]))
