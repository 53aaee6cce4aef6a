"""What the process of workshop.py does: compile a loop for each line that it is asked for.

    customers --line--> this process --line--> workers --> files
              <-code---              <-code---

Workers are forks of it, which have Numba and LLVM at once. There are as many as are needed, and at
most one for each core that a customer may use: those sleep while they wait. One that has compiled a
loop knows the formulas of its file, and gets the others of that file. What is asked for soon after
a line is compiled, too, where there is a core for it.

It ends when the last customer has, or when nobody had asked for a while, and its workers with it.
"""

import ctypes
import gc
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, field

from . import notation
from .common import going_with
from .compiled import loop_named
from .packs import parts_of_key
from .targets import target
from .workshop import Wire

IDLE_SECONDS = 20.0
SEND_SECONDS = 5.0  # for a customer to take what it has asked for
MOST_WORKERS = 8
OBJECTS = 100_000  # made between two looks for garbage, an eighth of Numba's time by default
_SIGNAL_AT_DEATH = 1  # an option of prctl(2)


def main() -> None:
    """Answer lines by packed code, b"" on errors. The standard input is a socket that listens."""
    listener = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.modules["scipy"] = None  # type: ignore[assignment]  # Numba would load it, for no loop
    notation.load()
    gc.freeze()
    gc.set_threshold(OBJECTS)
    Counter(listener).serve()


@dataclass(eq=False)
class Worker:
    """A fork of this process, the line that it compiles ("": none), and files that it knows."""

    wire: Wire
    process: int
    line: str = ""
    files: set[str] = field(default_factory=set)

    def begin(self, line: str) -> None:
        """Let it compile a line."""
        self.line = line
        self.files.add(_file_of(line))
        with suppress(OSError):  # it has died, which is heard where its answer is received
            self.wire.send(line.encode())

    def end(self) -> bytes:
        """Return what it has made. Errors: OSError if it has died."""
        self.line = ""
        return self.wire.receive()


@dataclass(eq=False)
class Counter:
    """Where lines are taken, given to workers, and answered.

    waiting   of lines that were asked for and are not made, who waits
    ahead     lines that may be asked for
    made      code that there is
    cores     that customers may use
    """

    listener: socket.socket
    customers: list[Wire] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    waiting: dict[str, list[Wire]] = field(default_factory=dict)
    ahead: dict[str, None] = field(default_factory=dict)
    made: dict[str, bytes] = field(default_factory=dict)
    cores: set[int] = field(default_factory=set)

    def __post_init__(self):
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ, self._welcome)

    def serve(self) -> None:
        """Return when nobody is connected any more, or has asked for anything for a while."""
        while True:
            ready = self._selector.select(IDLE_SECONDS)
            if not ready and not self.waiting:
                return
            for key, _ in ready:
                key.data()
            if not self.customers:
                return
            self._give_out()

    # ---- customers -------------------------------------------------------------------------------

    def _welcome(self):
        wire = Wire(self.listener.accept()[0], SEND_SECONDS)
        process, user = wire.peer()
        if user != os.getuid():
            wire.close()
            return
        self.customers.append(wire)
        self._selector.register(wire, selectors.EVENT_READ, lambda: self._hear(wire))
        with suppress(OSError):  # it has ended
            self.cores |= os.sched_getaffinity(process)
            os.sched_setaffinity(0, self.cores)

    def _hear(self, customer):
        try:
            line, name = customer.receive().decode().split("\t")
        except OSError:
            self._lose(customer)
            return
        if line in self.made or not _is_known(line, name):
            self._answer(customer, self.made.get(line, b""))
            return
        self.waiting.setdefault(line, []).append(customer)
        for other in going_with(line, target().has_pairs):
            self.ahead.setdefault(other)

    def _answer(self, customer, content):
        try:
            customer.send(content)
        except OSError:
            self._lose(customer)

    def _lose(self, customer):
        """Forget one that has ended, or is given up."""
        if customer not in self.customers:
            return
        self.customers.remove(customer)
        self._selector.unregister(customer)
        customer.close()
        for line, those in list(self.waiting.items()):
            self.waiting[line] = [one for one in those if one is not customer]
            if not self.waiting[line]:
                del self.waiting[line]

    # ---- workers ---------------------------------------------------------------------------------

    def _give_out(self):
        """Let workers begin with lines that nobody compiles, as long as there are cores."""
        most = min(len(self.cores) or 1, MOST_WORKERS)
        begun = {worker.line for worker in self.workers}
        lines = [*self.waiting, *(self.ahead if most > 1 else ())]
        for line in dict.fromkeys(lines):
            if line in begun or line in self.made:
                continue
            idle = [worker for worker in self.workers if not worker.line]
            if not idle:
                if len(self.workers) == most:
                    return
                idle = [self._new_worker()]
            max(idle, key=lambda worker: _file_of(line) in worker.files).begin(line)

    def _new_worker(self) -> Worker:
        here, there = socket.socketpair()
        parent = os.getpid()
        process = os.fork()
        if not process:
            self._selector.close()
            for other in (*self.customers, *(worker.wire for worker in self.workers)):
                other.close()
            here.close()
            self.listener.close()
            _work(Wire(there, None), parent)
        there.close()
        worker = Worker(Wire(here), process)
        self.workers.append(worker)
        self._selector.register(worker.wire, selectors.EVENT_READ, lambda: self._take(worker))
        return worker

    def _take(self, worker):
        """Answer those who wait for what a worker has made; leave them to ask again if it died."""
        line = worker.line
        customers = self.waiting.pop(line, [])
        self.ahead.pop(line, None)
        try:
            content = worker.end()
        except OSError:
            self._bury(worker)
            for customer in customers:
                self._lose(customer)
            return
        if content:
            self.made[line] = content
        for customer in customers:
            self._answer(customer, content)

    def _bury(self, worker):
        self.workers.remove(worker)
        self._selector.unregister(worker.wire)
        worker.wire.close()
        os.waitpid(worker.process, 0)


def _file_of(line) -> str:
    """Return the module of the loop that a line names."""
    return parts_of_key(line)[0].rpartition(".")[0]


def _is_known(line, name) -> bool:
    """Return True if the loop is the customer's: from the same sources, for the same target."""
    try:
        loop, signature = loop_named(line)
    except Exception:  # the customer says what is wrong, when it compiles by itself
        return False
    return loop.file_name(signature) == name


def _work(orders, parent) -> None:
    """Compile lines until the process that this one was forked from ends; never return."""
    _end_with(parent)
    try:
        while True:
            orders.send(_code(orders.receive().decode()))
    finally:
        os._exit(0)


def _code(line) -> bytes:
    try:
        loop, signature = loop_named(line)
        return loop.made_here(signature).pack()
    except Exception:  # the customer tries by itself, and says what is wrong
        return b""


def _end_with(parent: int) -> None:
    """End this fork with the process that it was forked from, and give up what it has claimed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    ctypes.CDLL(None).prctl(_SIGNAL_AT_DEATH, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(0)
