"""Races: contestants in processes of their own that run their steps in turn, never two at once.

    driver  --"run steps 3, 4"-->  rank 0, rank 1 of one contestant; the others sleep on sockets
            <--{begin, end, losses, memory}--

    with Race(sizes) as race:
        race.enter(Spec("shardkit DDP", "shardkit", 2, "ddp"), Spec("torch DDP", "torch", 2, "ddp"))
        race.run(turns=7, steps=1)
        race.seconds("torch DDP")                  # of a step, one per turn

A contestant that fails is out, with its reason in `race.failed`; the rest go on. Since every
contestant has processes of its own, the peak of their resident memory is its own too.
"""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from contestants import (
    Sizes,
    Spec,
    bind,
    import_library,
    make_contestant,
    sizes_from,
    write_weights,
)

ONE_THREAD = {
    name: "1"
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
}
START_SECONDS = 300  # for imports, weights, and compiling
STEP_SECONDS = 300
WARM_UP_TURNS = 4  # torch.compile compiles in the first ones
TURN_SECONDS = 0.1  # of a turn at least: after another contestant's the caches are cold at first


class Failed(Exception):
    """A contestant that cannot go on."""


class Contestant:
    """The driver's side of one contestant: its processes, its sockets, what it has measured."""

    def __init__(self, spec: Spec, sizes: Sizes, folder: Path, weights: Path):
        self.spec = spec
        self._folder = folder
        self.turns: list[float] = []  # seconds of a step, one per turn
        self.latest = 0.0  # seconds of a step, in the last turn, which may have been one to warm up
        self.processor_turns: list[float] = []  # processor seconds of a step, all ranks together
        self.losses: dict[int, float] = {}  # step -> loss of the global batch
        self.memory: list[dict] = []  # of each rank, after its last step
        self._log = (folder / "log.txt").open("w+b")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(folder / "socket"))
        self._socket.listen(spec.ranks)
        arguments = [spec.to_json(), sizes.to_json(), str(weights), str(folder / "socket")]
        self._files: list = []
        self._processes = [
            self._start(rank, arguments)
            for rank in range(1 if spec.library == "shardkit" else spec.ranks)
        ]

    def _start(self, rank: int, arguments: list[str]):
        """Start all ranks: those of shardkit by mpiexec, those of PyTorch with torchrun's
        variables.
        """
        command = [sys.executable, __file__, *arguments]
        environment = {**os.environ, **ONE_THREAD}
        if self.spec.library == "shardkit":
            command = [mpiexec(), "-n", str(self.spec.ranks), *command]
        else:
            environment |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.spec.ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()) if rank == 0 else self._port,
            }
            self._port = environment["MASTER_PORT"]
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Wait until all ranks have made their model. Errors: Failed if not in time."""
        for _ in range(self.spec.ranks):
            self._files.append(self._accept(time.monotonic() + START_SECONDS))
        self._answers(START_SECONDS)

    def _accept(self, deadline: float):
        self._socket.settimeout(1.0)
        while time.monotonic() < deadline:
            try:
                connection = self._socket.accept()[0]
                return connection, connection.makefile("rw")
            except TimeoutError:
                if any(process.poll() is not None for process in self._processes):
                    break
        raise Failed(self._last_words("did not start"))

    def run(self, numbers: range, *, counts: bool = True) -> float:
        """Take these steps and return the seconds of one. Errors: Failed."""
        for _, file in self._files:
            try:
                send_line(file, {"first": numbers.start, "stop": numbers.stop})
            except OSError:
                raise Failed(self._last_words("ended")) from None
        answers = self._answers(STEP_SECONDS)
        seconds = (max(a["end"] for a in answers) - min(a["begin"] for a in answers)) / len(numbers)
        for at, number in enumerate(numbers):
            of_ranks = [a["losses"][at] for a in answers if a["losses"][at] is not None]
            self.losses[number] = sum(of_ranks) / len(of_ranks)
        self.memory = [a["memory"] for a in answers]
        self.latest = seconds
        if counts:
            self.turns.append(seconds)
            self.processor_turns.append(sum(a["processor_seconds"] for a in answers) / len(numbers))
        return seconds

    def _answers(self, seconds: float) -> list[dict]:
        answers = []
        for connection, file in self._files:
            connection.settimeout(seconds)
            try:
                line = file.readline()
            except TimeoutError:
                raise Failed(self._last_words(f"did not answer within {seconds} s")) from None
            except OSError:
                line = ""
            if not line:
                raise Failed(self._last_words("ended"))
            answers.append(json.loads(line))
        return sorted(answers, key=lambda answer: answer["rank"])

    def _last_words(self, what: str) -> str:
        self._log.seek(0)
        lines = [
            line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()
        ]
        said = next(
            (line for line in reversed(lines) if "Error" in line),
            lines[-1] if lines else "no words",
        )
        codes = [process.poll() for process in self._processes]
        return f"{what}, exit codes {codes} (None: still there): {said.strip()[:200]}"

    def close(self, patience: float = 20.0) -> None:
        """Hang up, and end those of its processes that are still there after this many seconds.

        A second call does nothing.
        """
        for connection, file in self._files:
            with suppress(OSError):  # what could not be written to a dead process
                file.close()
            connection.close()
        self._files = []
        self._socket.close()
        for process in self._processes:
            for signal_number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
                    break
                os.killpg(process.pid, signal_number)
            process.wait()
        self._log.close()


class Race:
    """Contestants on one model, in one folder that goes away afterwards."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.contestants: dict[str, Contestant] = {}
        self.failed: dict[str, str] = {}
        self._next_step = 0
        self._temporary = tempfile.TemporaryDirectory(prefix="race-")
        self._folder = Path(self._temporary.name)
        self.flops_per_token = write_weights(sizes, str(self._folder / "weights.npz"))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for contestant in self.contestants.values():
            contestant.close()
        self._temporary.cleanup()

    def enter(self, *specs: Spec) -> None:
        """Start contestants, all at once, and wait until they are ready; a failure is noted."""
        for spec in specs:
            folder = self._folder / str(len(self.contestants))
            folder.mkdir()
            print(f"  starting {spec.name}", flush=True)
            self.contestants[spec.name] = Contestant(
                spec, self.sizes, folder, self._folder / "weights.npz"
            )
        for spec in specs:
            self._guarded(self.contestants[spec.name], self.contestants[spec.name].wait_until_ready)

    @property
    def running(self) -> list[Contestant]:
        """The contestants that have not failed."""
        return [c for name, c in self.contestants.items() if name not in self.failed]

    def run(self, *, turns: int, steps: int, counts: bool = True) -> None:
        """Each contestant takes the same `steps` steps per turn; every other turn goes
        backwards.
        """
        for turn in range(turns):
            numbers = range(self._next_step, self._next_step + steps)
            for contestant in self.running[:: -1 if turn % 2 else 1]:
                self._guarded(contestant, lambda c=contestant: c.run(numbers, counts=counts))
            self._next_step += steps

    def run_for(
        self, seconds: float, *, steps: int, turns_at_least: int, turns_at_most: int
    ) -> None:
        """Warm up, then run as many turns as fit into the time, of `steps` steps each, or of so
        many that the turn of the quickest lasts TURN_SECONDS.
        """
        self.run(turns=WARM_UP_TURNS, steps=1, counts=False)
        quickest = min((each.latest for each in self.running), default=TURN_SECONDS)
        steps = max(steps, math.ceil(TURN_SECONDS / quickest))
        began = time.monotonic()
        self.run(turns=1, steps=steps)
        fitting = int(seconds / max(time.monotonic() - began, 1e-3))
        self.run(turns=max(turns_at_least, min(turns_at_most, fitting)) - 1, steps=steps)

    def seconds(self, name: str) -> float | None:
        """Return the median time of a step; None if it failed before the first."""
        turns = self.contestants[name].turns
        return median(turns) if turns else None

    def processor_seconds(self, name: str) -> float | None:
        """Return the median processor time of a step of all ranks together.

        It is steadier than the clock on a busy machine.
        """
        turns = self.contestants[name].processor_turns
        return median(turns) if turns else None

    def paired(self, name: str, other: str) -> list[tuple[float, float]]:
        """Return the times of a step of two contestants, turn by turn: neighbors meet the same
        noise.

        Of two that have one rank, which never waits, it is processor time: a busy machine changes
        it least.
        """
        both = [self.contestants[each] for each in (name, other)]
        if all(contestant.spec.ranks == 1 for contestant in both):
            return list(zip(*[contestant.processor_turns for contestant in both]))
        return list(zip(*[contestant.turns for contestant in both]))

    def loss_difference(self, name: str, reference: str) -> float | None:
        """Return the largest relative difference of two contestants' losses, over their common
        steps, or the first of them that the sizes say (compared_losses).
        """
        ours, theirs = self.contestants[reference].losses, self.contestants[name].losses
        both = [step for step in theirs if step in ours]
        both = both[: getattr(self.sizes, "compared_losses", None)]
        return max(abs(theirs[s] - ours[s]) / abs(ours[s]) for s in both) if both else None

    def _guarded(self, contestant, act):
        try:
            act()
        except (Failed, OSError, ValueError) as error:
            self.failed[contestant.spec.name] = str(error)
            print(f"  {contestant.spec.name} is out: {error}", flush=True)
            contestant.close(patience=1.0)


def mpiexec() -> str:
    """Return the mpiexec beside this Python, or the system's."""
    beside = Path(sys.executable).parent / "mpiexec"
    return str(beside) if beside.exists() else "mpiexec"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ---- in the processes of a contestant ------------------------------------------------------------


def serve(spec: Spec, sizes: Sizes, weights: str, path: str) -> None:
    """Make the contestant's rank, then take steps as the driver says until it hangs up."""
    rank = int(
        os.environ.get("RANK")
        or os.environ.get("PMI_RANK")
        or os.environ.get("OMPI_COMM_WORLD_RANK")
        or 0
    )
    if spec.ranks <= len(os.sched_getaffinity(0)):
        bind(rank)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    import_library(spec)
    before = memory()
    contestant = make_contestant(spec, sizes, weights, rank)
    with connection.makefile("rw") as file:
        send_line(file, {"rank": rank})
        for line in file:
            order = json.loads(line)
            begin = time.monotonic()
            processor_begin = time.process_time()
            losses = [contestant.step(number) for number in range(order["first"], order["stop"])]
            send_line(
                file,
                {
                    "rank": rank,
                    "begin": begin,
                    "end": time.monotonic(),
                    "processor_seconds": time.process_time() - processor_begin,
                    "losses": losses,
                    "memory": {**memory(), "before": before["peak"], **contestant.facts()},
                },
            )
    contestant.close()


def send_line(file, what: dict) -> None:
    file.write(json.dumps(what) + "\n")
    file.flush()


def memory() -> dict[str, int]:
    """Return bytes of this process: its resident peak, the shared part of it, its fair share of all
    now.
    """
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    rollup = dict(
        line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    )
    return {
        "peak": kib(status["VmHWM"]),
        "shared": kib(status["RssShmem"]),
        "proportional": kib(rollup["Pss"]),
    }


def kib(text: str) -> int:
    return int(text.split()[0]) * 1024


if __name__ == "__main__":
    own_spec, own_sizes, weights_file, socket_path = sys.argv[1:]
    serve(Spec(**json.loads(own_spec)), sizes_from(own_sizes), weights_file, socket_path)
