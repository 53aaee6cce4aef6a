"""The process of a node that compiles loops for all others there, and ends when none asks.

    this process --loop and signature, a line--> the workshop, with Numba and LLVM --> files
                 <--------- its code ---------

So Numba and LLVM are loaded once for all ranks of a node, and no rank is larger or busier than one
that finds its code in files: it sleeps meanwhile. Processes of one user that keep code in the same
folders meet at one address, a socket that has no file: the first of them starts the workshop there,
and the address is free again once it has ended, whatever the reason.

The workshop has nothing of MPI, imports from where this process does, and ends with those that it
compiles for (answers.py).
"""

import errno
import hashlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Hashable

from ...environment import environment_without_launcher
from ...files.programs import python_command
from ...forks import is_of_parent, own

LONGEST_SECONDS = 600.0  # for one loop, on a machine that does other things
AGAIN_SECONDS = (0.0, 0.05, 0.5)  # after which it is tried again: one may just be ending
PATIENCE, POLL_SECONDS = 500, 0.01
_HEAD = struct.Struct("=q")
_PEER = struct.Struct("=iII")  # process, user and group, as the kernel knows them
_PLAIN = "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"  # Numba writes errors that nobody sees
_MAIN = f"from {__package__}.answers import main; main()"


class Wire:
    """Messages between two processes, over a socket."""

    def __init__(self, end: socket.socket, seconds: float | None = LONGEST_SECONDS):
        end.settimeout(seconds)
        self._socket = end

    def fileno(self) -> int:
        """Return the file descriptor, to wait for."""
        return self._socket.fileno()

    def peer(self) -> tuple[int, int]:
        """Return the process that has connected, or listens, and its user."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        process, user, _ = _PEER.unpack(found)
        return process, user

    def send(self, message: bytes) -> None:
        """Send a message. Errors: OSError if the other has ended, or does not read it."""
        self._socket.sendall(_HEAD.pack(len(message)) + message)

    def receive(self) -> bytes:
        """Return the next message. Errors: OSError if the other has ended, or takes too long."""
        (length,) = _HEAD.unpack(self._exactly(_HEAD.size))
        return self._exactly(length)

    def close(self) -> None:
        """Leave the other alone."""
        self._socket.close()

    def _exactly(self, length):
        parts, missing = [], length
        while missing:
            parts.append(self._socket.recv(missing))
            if not parts[-1]:
                raise ConnectionResetError("the other process has ended")
            missing -= len(parts[-1])
        return b"".join(parts)


class Workshop:
    """A connection to the workshop at an address, which is started where there is none."""

    def __init__(self, address: str):
        self._address = address
        self._wire: Wire | None = None
        self._process: subprocess.Popen | None = None  # if this one has started it

    @property
    def is_open(self) -> bool:
        """True if this process is connected."""
        return self._wire is not None and not is_of_parent(self._wire)

    def code(self, line: str, name: str) -> bytes | None:
        """Return the code of a loop for a signature, packed; None if that cannot be had here.

        name   of the file that keeps it: where it would be another, sources differ
        """
        for seconds in AGAIN_SECONDS:
            time.sleep(seconds)
            try:
                if not self.is_open:
                    self._connect()
                assert self._wire is not None
                self._wire.send(f"{line}\t{name}".encode())
                return self._wire.receive() or None
            except OSError:
                self.close()
            except BaseException:  # Ctrl-C: its answer would be taken for that of the next line
                self.close()
                raise
        return None

    def close(self) -> None:
        """Say that this process asks for nothing more."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _connect(self):
        """Errors: OSError if there is no workshop of this user, and none can be started."""
        self.close()
        self._wire = self._wire_to_it()
        own(self._wire)
        if self._wire.peer()[1] != os.getuid():
            raise PermissionError(f"another user listens at {self._address!r}")

    def _wire_to_it(self) -> Wire:
        for _ in range(PATIENCE):
            try:
                return _connected(self._address)
            except ConnectionRefusedError:  # nobody listens
                pass
            try:
                return self._started()
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                time.sleep(POLL_SECONDS)  # another process is about to listen
        raise TimeoutError(f"nobody listens at {self._address!r}, which is taken")

    def _started(self) -> Wire:
        """Return a connection to a workshop that is started with a socket that listens already.

        Who connects is heard, however long that takes to begin.
        """
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(socket.SOMAXCONN)
            wire = _connected(self._address)
            try:
                self._process = subprocess.Popen(
                    python_command(_MAIN),
                    stdin=listener.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=os.sep,  # Numba reads a file of settings in the working folder
                    env={**environment_without_launcher(), _PLAIN: "1"},
                    start_new_session=True,
                )
            except BaseException:
                wire.close()
                raise
        return wire


def address_of(*ground: Hashable) -> str:
    """Return where processes of this user meet that have all this in common."""
    common = repr((os.getuid(), sys.executable, __file__, *ground))
    return f"\0shardkit-{hashlib.sha256(common.encode()).hexdigest()[:32]}"


def _connected(address) -> Wire:
    """Errors: OSError if nobody listens."""
    made = socket.socket(socket.AF_UNIX)
    wire = Wire(made)
    try:
        made.connect(address)
    except BaseException:
        wire.close()
        raise
    return wire


class Workshops:
    """Gives each thread that compiles a connection of its own, and it to the next one."""

    def __init__(self, address: str):
        self._address = address
        self._lock = threading.Lock()
        self._idle: list[Workshop] = []

    def code(self, line: str, name: str) -> bytes | None:
        """Return what Workshop.code returns."""
        with self._lock:
            one = self._idle.pop() if self._idle else Workshop(self._address)
        try:
            return one.code(line, name)
        finally:
            with self._lock:
                self._idle.append(one)
