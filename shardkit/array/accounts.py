"""Count the bytes of arrays that are alive, by purpose."""

import threading
import weakref


def owner_of(array):
    """Return the array that owns the memory: it lives as long as any view of it."""
    while type(array.base) is type(array):
        array = array.base
    return array


class Accounts:
    """Bytes alive and their peak, per purpose ("parameters", "gradients", ...).

    A figure falls when the last view of an array is garbage: it counts what is resident, not what
    was asked for.
    """

    def __init__(self):
        # Reentrant: a finalizer may run inside a locked section of its own thread.
        self._lock = threading.RLock()
        self._live: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self._total = 0
        self._total_peak = 0

    def watch(self, array, purpose: str):
        """Count this array until its memory is garbage, and return it."""
        self.add(purpose, array.nbytes)
        weakref.finalize(owner_of(array), self.add, purpose, -array.nbytes)
        return array

    def live_bytes(self, *purposes: str) -> int:
        """Return the bytes alive now, of these purposes or (none given) of all."""
        return sum(self._live.get(p, 0) for p in purposes or self._live)

    def peak_bytes(self, purpose: str | None = None) -> int:
        """Return the peak since `reset_peak`, of one purpose or of all together."""
        return self._total_peak if purpose is None else self._peak.get(purpose, 0)

    def peaks(self) -> dict[str, int]:
        """Return the peak of each purpose since `reset_peak`, in a new dict.

        Purposes reach theirs at different times, so together they are more than peak_bytes().
        """
        return {purpose: count for purpose, count in sorted(self._peak.items()) if count}

    def reset_peak(self):
        """Start measuring the peak anew from what is alive now."""
        with self._lock:
            self._peak = dict(self._live)
            self._total_peak = self._total

    def table(self) -> dict[str, int]:
        """Return the bytes alive per purpose, in a new dict."""
        return {purpose: count for purpose, count in sorted(self._live.items()) if count}

    def add(self, purpose: str, num_bytes: int) -> None:
        """Count memory that is not watched; its owner takes it back with a negative number."""
        with self._lock:
            self._live[purpose] = self._live.get(purpose, 0) + num_bytes
            self._peak[purpose] = max(self._peak.get(purpose, 0), self._live[purpose])
            self._total += num_bytes
            self._total_peak = max(self._total_peak, self._total)


def bytes_text(count: int) -> str:
    """Return a number of bytes for people to read, such as 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
