"""Two "nodes" on one machine, with a slow link between them: network namespaces whose only way to
each other leads through a process that delays packets, for benchmarks of what crosses nodes.

    namespace skl1                                            namespace skl2
    eth0, 10.78.0.1  <-- TUN --> [ rate, then delay ] <-- TUN -->  eth0, 10.78.0.2

    with TwoNodes(delay_seconds=2e-4, bits_per_second=1e9) as nodes:
        subprocess.run([*nodes.mpiexec(ranks_per_node=2), "python", "script.py"])

Each node has a host name and a /dev/shm of its own, so no MPI takes the two for one. The link
loses nothing, and lets packets of both directions pass at once. Linux's own emulator, netem, is a
module that many kernels lack; this needs root, /dev/net/tun, and iproute2. Forwarding takes part of
a core, at a priority above all ranks.
"""

import argparse
import collections
import ctypes
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

from race import mpiexec

NODES = (1, 2)
NAME, ADDRESS = "skl{}", "10.78.0.{}"
MTU_BYTES, MAX_PACKET_BYTES = 9000, 65536
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_CLONE_NEWNET, _SPIN_SECONDS = 0x40000000, 1e-4
_PACKETS_AT_ONCE = 32
ENTER = Path(__file__).with_name("enter_node.sh")


class TwoNodes:
    """A context manager: both nodes and their link exist inside of it.

    delay_seconds    one way, of every packet
    bits_per_second  each way
    Errors: OSError, RuntimeError if the machine does not allow it.
    """

    def __init__(self, *, delay_seconds: float, bits_per_second: float):
        self._link = ["--delay", str(delay_seconds), "--rate", str(bits_per_second)]
        self._process = None

    def __enter__(self) -> "TwoNodes":
        self._process = subprocess.Popen(
            [sys.executable, __file__, *self._link], stdout=subprocess.PIPE, text=True
        )
        if self._process.stdout.readline() != "up\n":
            self.__exit__()
            raise RuntimeError("the link did not come up: it needs root, /dev/net/tun and iproute2")
        return self

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait(20)
        self._process.stdout.close()

    def mpiexec(self, ranks_per_node: int) -> list[str]:
        """Return the beginning of a command that starts so many ranks on each node."""
        hosts = ",".join(f"{ADDRESS.format(node)}:{ranks_per_node}" for node in NODES)
        launcher = ["-launcher", "ssh", "-launcher-exec", str(ENTER), "-iface", "eth0"]
        return ["ip", "netns", "exec", NAME.format(1), mpiexec(), *launcher, "-hosts", hosts]


# ---- the process between the nodes ---------------------------------------------------------------


def open_node(node: int) -> int:
    """Make the namespace of a node; return the file of its network device."""
    name = NAME.format(node)
    subprocess.run(["ip", "netns", "add", name], check=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        _enter(there)  # a TUN device belongs to the namespace that opens it
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TUN_WITHOUT_HEADER))
    finally:
        _enter(here)
        os.close(there)
        os.close(here)
    for command in (
        f"addr add {ADDRESS.format(node)}/24 dev eth0",
        f"link set eth0 mtu {MTU_BYTES} txqueuelen 10000 up",
        "link set lo up",
    ):
        subprocess.run(["ip", "-n", name, *command.split()], check=True)
    return file


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def close_node(node: int) -> None:
    """End what runs in a namespace, and remove it."""
    name = NAME.format(node)
    found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
    for process in found.stdout.split():
        os.kill(int(process), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], check=False)


class Direction:
    """Packets on their way from one device to another.

    A packet leaves when those before it have left, and so many bytes per second leave; it arrives
    `delay` later.
    """

    def __init__(self, source: int, target: int, delay: float, bytes_per_second: float):
        self._source, self._target = source, target
        self._delay, self._rate = delay, bytes_per_second
        self._is_free_at = 0.0
        self._under_way: collections.deque = collections.deque()  # of (arrival, packet)

    @property
    def next_arrival(self) -> float:
        return self._under_way[0][0] if self._under_way else float("inf")

    def take(self) -> None:
        """Take packets that the source has sent."""
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(self._source, MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            self._is_free_at = max(self._is_free_at, time.monotonic()) + len(packet) / self._rate
            self._under_way.append((self._is_free_at + self._delay, packet))

    def deliver(self) -> None:
        """Hand over the packets that have arrived."""
        while self.next_arrival <= time.monotonic():
            packet = self._under_way.popleft()[1]
            try:
                os.write(self._target, packet)
            except OSError:  # the device is not up yet
                pass


def forward(files: list[int], delay: float, bits_per_second: float) -> None:
    """Forward packets between two devices, for ever."""
    one, two = files
    rate = bits_per_second / 8
    directions = {one: Direction(one, two, delay, rate), two: Direction(two, one, delay, rate)}
    while True:
        left = min(d.next_arrival for d in directions.values()) - time.monotonic()
        # the last moments are spent asking: a timer may be late by as much
        wait = min(max(left - _SPIN_SECONDS, 0), 1)
        for file in select.select(files, [], [], wait)[0]:
            directions[file].take()
        for direction in directions.values():
            direction.deliver()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay", type=float, default=2e-4, help="seconds, one way")
    parser.add_argument("--rate", type=float, default=1e9, help="bits per second, each way")
    asked = parser.parse_args()

    def stop(number, frame):
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        files = [open_node(node) for node in NODES]
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        print("up", flush=True)
        forward(files, asked.delay, asked.rate)
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for node in NODES:
            close_node(node)


if __name__ == "__main__":
    main()
