"""The hang report: who waits for whom, read from the ledgers of all ranks.

rank 0, 1, 3   in  all_reduce of 1,024 float32 (call 7 on group world)      they wait
rank 2         not in that call: last seen in broadcast (call 6), 12 s ago  everybody waits for it
"""

import os
import time
from collections import defaultdict
from math import inf
from pathlib import Path

import numpy

from ...errors import CheckpointError
from ...files.reading import read_bytes
from ..ranks import in_words
from .folder import STACKS_FOLDER, STACKS_NAME
from .ledgers import ANY, Ledgers, read_ledgers, without_room
from .places import LedgerPlaces
from .processes import is_stopped
from .progress import Call
from .pulse import Pulse
from .recorded import GroupName, RecordedRank

_OWN_THREADS = (
    "comm/watch/watchdog.py",
    "comm/watch/many.py",
    "comm/watch/own_warden.py",
    "comm/mpi/guard.py",
    "comm/watch/lifeline.py",
    "files/ownership.py",
    "in note_native_work",
)
_MAX_STACKS = 3  # ranks; the others are in the files
_MAX_RANKS = 8  # named one by one in a line, or in lines of their own
_MAX_CALLS = 16  # in lines of their own
_MAX_STACK_LINES = 30
_MOST_STACK_BYTES = 1 << 24


def hang_report(folder, now: float | None = None) -> str:
    """Return the lines that say what each rank waits for, or where it was when the job ended.

    folder   of the ledgers
    now      seconds since the epoch; None: the last time that any rank wrote, for a job that ended
    Errors: FileNotFoundError if there are no ledgers.
    """
    return report_of(read_ledgers(folder), folder, now)


def report_of(found: Ledgers, folder, now: float | None = None) -> str:
    """Return hang_report() of ledgers that have been read from the folder."""
    now = float(found.last_times.max()) if now is None else now
    lines = _calls_lines(found, now)
    outside = numpy.flatnonzero(~found.is_in_call)
    for row in outside[:_MAX_RANKS].tolist():
        rank = found.rank(row)
        lines.append(f"{in_words([rank.rank])} in no call: {_last_seen(rank, now)}")
    if outside.size > _MAX_RANKS:
        lines.append(f"{in_words(found.ranks[outside[_MAX_RANKS:]].tolist())} in no call, too")
    lines += _silent_lines(Path(folder), found)
    if _stacks_of(Path(folder)).exists():
        inside = numpy.flatnonzero(found.is_in_call)
        inside = inside[numpy.argsort(-found.rows["last"]["began"][inside], kind="stable")]
        # First the ranks that others wait for, then those that came last.
        for row in [*outside, *inside][:_MAX_STACKS]:
            lines += _stack_lines(Path(folder), found.rank(row))
    return "\n".join(lines)


def _calls_lines(found: Ledgers, now: float) -> list[str]:
    """Return what the ranks in calls wait for, who waits longest first."""
    rows = numpy.flatnonzero(found.is_in_call)
    last = found.rows["last"][rows]
    waiting = defaultdict(list)  # (group or message, number) -> rows
    keys = zip(last["group"].tolist(), last["number_on_group"].tolist())
    for row, key in zip(rows.tolist(), keys):
        waiting[key].append(row)
    began = found.rows["last"]["began"]
    calls = sorted(waiting.values(), key=lambda rows: began[rows].min())
    lines = [line for rows in calls[:_MAX_CALLS] for line in _waiting_lines(rows, found, now)]
    rest = [row for rows in calls[_MAX_CALLS:] for row in rows]
    if rest:
        numbers = sorted(found.ranks[rest].tolist())
        lines.append(f"{in_words(numbers)} in {len(calls) - _MAX_CALLS:,} more calls")
    return lines


def _silent_lines(folder: Path, found: Ledgers) -> list[str]:
    """Return which ranks left no ledger, and for which of them there was no room."""
    everyone = numpy.arange(found.rows["world_size"][0])
    silent = numpy.setdiff1d(everyone, found.ranks).tolist()
    full = sorted(without_room(folder).intersection(silent))
    lines = [f"{in_words(silent)} left no ledger here"] if silent else []
    if full:
        lines.append(
            f"  there was no room on the disk for {in_words(full)}, which may be all right"
        )
    return lines


def hang_suspects(folder, seconds: float = inf) -> str:
    """Return a phrase that names the ranks for which the others wait.

    seconds   that a call may take; ranks that got on with work of their own within this time are
              meant only if all did
    In this order: ranks that wait for nobody, ranks of this node that are in a call, but whose
    process is stopped, whose interpreter is, or which run other code; ranks in another call.
    Errors: FileNotFoundError if there are no ledgers.
    """
    return suspects_of(read_ledgers(folder), folder, seconds)


def suspects_of(found: Ledgers, folder, seconds: float = inf) -> str:
    """Return hang_suspects() of ledgers that have been read from the folder."""
    missing, idle, is_known = _not_come(Path(folder), found, seconds)
    here = _rows_here(found)
    pids = found.rows["pid"]
    stopped = {rank for rank, row in here.items() if is_stopped(int(pids[row]))}
    now = time.monotonic()
    pulses = {
        rank: Pulse(*found.rows["pulse"][row].tolist())
        for rank, row in here.items()
        if rank not in stopped
    }
    silent = {number: pulse.silent_seconds(now, seconds) for number, pulse in pulses.items()}
    away = {number: pulse.away_seconds(now, seconds) for number, pulse in pulses.items()}
    stuck = {number for number in pulses if silent[number]}
    busy = {number for number in pulses if away[number]}
    is_common = len(busy) == found.is_in_call.sum()  # a compilation, for example
    for named, word in (
        (idle, "missing, and stopped" if idle <= stopped else "missing"),
        (stopped, "stopped"),
        (stuck, "missing"),
        (set() if is_common else busy, "missing"),
        (missing, "missing"),
    ):
        if named:
            phrase = f"{in_words(sorted(named))} {'is' if len(named) == 1 else 'are'} {word}"
            return phrase + _why(named, found, silent, away)
    if not is_known:
        return "which ranks are missing is not known"
    everyone = set(found.ranks.tolist()) if is_common else set()
    return "all ranks are there" + _why(everyone, found, {}, away)


def _rows_here(found: Ledgers) -> dict[int, int]:
    """Return {rank: row} of the ranks of this node."""
    host = found.texts.get(os.uname().nodename, -1)
    rows = numpy.flatnonzero(found.rows["host"] == host)
    return dict(zip(found.ranks[rows].tolist(), rows.tolist()))


def _not_come(folder: Path, found: Ledgers, seconds: float) -> tuple[set[int], set[int], bool]:
    """Return the ranks that are not in a collective call of others, and those that wait for nobody;
    False if there may be more.

    seconds   ranks that got on with work of their own within this time are meant only if all did
    """
    missing: set[int] = set()
    peers: set[int] = set()
    is_known = True
    for name, number in _last_numbers(found).items():
        place = found.place(name)
        late, knows = _late(found, place, number)
        is_known &= knows
        missing.update(late if number else ())
        peers.update(() if number else late)
    ready = found.ranks[~found.is_in_call].tolist()
    silent = numpy.asarray([*missing, *peers], numpy.int64)
    idle = (missing | peers).intersection(ready)
    idle |= {*silent[found.rows_of(silent) < 0].tolist()}
    since = inf if seconds == inf else time.time() - seconds
    at_work = idle.intersection(found.ranks[found.rows["worked"] > since].tolist())
    idle = idle - at_work or at_work
    full = without_room(folder).intersection(idle).difference(found.ranks.tolist())
    return missing, idle - full or full, is_known  # these may be all right


def _last_numbers(found: Ledgers) -> dict[int, int]:
    """Return {group: number of the last call on it that a rank is in}, 0 for a message."""
    last = found.rows["last"][found.is_in_call]
    numbers: dict[int, int] = {}
    for name, number in zip(last["group"].tolist(), last["number_on_group"].tolist()):
        numbers[name] = max(number, numbers.get(name, 0))
    return numbers


def _late(found: Ledgers, place: GroupName, number: int) -> tuple[list[int], bool]:
    """Return the ranks that have not begun a collective; False if there may be more.

    number   0: a message, for which its other end is late
    """
    if place.ranks is None:
        return [], False
    begun = found.begun(place.group, place.ranks)
    late = place.ranks[begun < number] if number else place.ranks
    return late.tolist(), bool((begun != ANY).all())


def _why(named, found: Ledgers, silent, away) -> str:
    """Return what is known of ranks that are named, ready to follow them; {rank: seconds}."""
    code = _code_of(named, found)
    return code + (_why_silent(named, silent) or ("" if code else _why_away(named, away)))


def _code_of(named, found: Ledgers) -> str:
    """Return what code these ranks load or compile."""
    rows = found.rows_of(sorted(named))
    busy = rows[(rows >= 0) & (found.rows["code"][rows] > 0)]
    return "".join(
        f", rank {rank.rank} is {rank.code} since {time.time() - rank.since:.0f} s"
        for rank in map(found.rank, busy[:_MAX_STACKS].tolist())
    )


def _why_silent(named: set[int], silent: dict[int, float]) -> str:
    """Return what is to be added if the interpreter of some ranks does not run.

    silent   {rank: seconds}
    """
    stuck = sorted(number for number in named if silent.get(number))
    if not stuck:
        return ""
    seconds = min(silent[number] for number in stuck)
    whose = "its interpreter" if len(named) == 1 else f"the interpreter of {in_words(stuck)}"
    return f": {whose} has not run for {seconds:.1f} s, native code holds its lock"


def _why_away(named: set[int], away: dict[int, float]) -> str:
    """Return what is to be added if ranks run other code inside of the call; {rank: seconds}."""
    busy = sorted(number for number in named if away.get(number))
    if not busy:
        return ""
    seconds = min(away[number] for number in busy)
    who = "it runs" if len(named) == 1 else f"{in_words(busy)} run{'s' if len(busy) == 1 else ''}"
    return (
        f": {who} other code inside of the call for {seconds:.1f} s, perhaps a signal handler or a "
        "compilation"
    )


def late_text(folder, call: Call, places: LedgerPlaces) -> str:
    """Return which ranks have not begun a collective, in words; "" if none is known.

    Errors: FileNotFoundError if there are no ledgers.
    """
    late = read_ledgers(folder, call.ranks, places).late(call).tolist()
    return f"{in_words(late)} {'is' if len(late) == 1 else 'are'} missing" if late else ""


def idle_since(folder, time: float) -> str:
    """Return the ranks, in words, that are in no call and noted work of their own before this time.

    time      seconds since the epoch
    returns   "" if there are none
    Errors: FileNotFoundError if there are no ledgers.
    """
    found = read_ledgers(folder)
    worked = found.rows["worked"]
    is_idle = ~found.is_in_call & (worked > 0)
    is_idle &= numpy.maximum(worked, found.last_times) < time
    idle = found.ranks[is_idle].tolist()
    return in_words(idle) if idle else ""


def _waiting_lines(rows: list[int], found: Ledgers, now: float) -> list[str]:
    """Return what the ranks of these rows wait for, all in the same call."""
    call = found.rank(rows[0]).calls[-1]
    place = found.place(int(found.rows["last"]["group"][rows[0]]))
    if call.number_on_group is None:
        peer = "an unknown rank" if place.ranks is None else in_words(place.ranks.tolist())
        return [
            f"{in_words(found.ranks[rows].tolist())} in {call.carries} with {peer} "
            f"for {now - call.began:.1f} s, called at {call.site}"
        ]
    lines = []
    by_call = _by_call(rows, found)
    where = f"(call {call.number_on_group} on group {call.group}) for {now - call.began:.1f} s"
    firsts = [found.rank(numbers[0]).calls[-1] for numbers in by_call]
    for numbers, of_these in zip(by_call, firsts):
        who = in_words(found.ranks[numbers].tolist())
        lines.append(f"{who} in {of_these.carries} {where}, called at {of_these.site}")
    if len({of_these.carries for of_these in firsts}) > 1:
        lines.append(
            "  these are different calls with the same number: all ranks of a group must make the "
            "same calls"
        )
    missing, is_known = _late(found, place, call.number_on_group)
    if missing:
        lines.append(f"  missing: {in_words(missing)} of {len(place.ranks)} ranks")
    if not is_known:
        lines.append("  of some ranks it is not known if they have come to this call")
    return lines


def _by_call(rows: list[int], found: Ledgers) -> list[list[int]]:
    """Return the rows that carry the same in a call at the same place, most ranks first."""
    last = found.rows["last"][rows]
    keys = zip(*(last[field].tolist() for field in ("verb", "dtype", "count", "site")))
    by_call = defaultdict(list)
    for row, key in zip(rows, keys):
        by_call[key].append(row)
    return sorted(by_call.values(), key=len, reverse=True)[:_MAX_CALLS]


def _last_seen(rank: RecordedRank, now: float) -> str:
    if not rank.calls:
        return f"it has made none (process {rank.pid} on {rank.host})"
    call = rank.calls[-1]
    number = (
        ""
        if call.number_on_group is None
        else f" (call {call.number_on_group} on group {call.group})"
    )
    how = " by an exception" if call.has_failed else ""
    return (
        f"last seen {now - call.ended:.1f} s ago, leaving {call.carries}{number}{how}, "
        f"called at {call.site} (process {rank.pid} on {rank.host})"
    )


def _stacks_of(folder: Path) -> Path:
    """Return the folder of stacks. Those of older versions lie beside the ledgers."""
    newer = folder / STACKS_FOLDER
    return folder if (folder / "hang").exists() and not newer.exists() else newer


def _stack_lines(folder: Path, rank: RecordedRank) -> list[str]:
    """Return the stacks of the rank's threads, innermost call first, without our own threads.

    The main thread, which a file has last, comes first: other threads may fill the lines.
    """
    path = _stacks_of(folder) / STACKS_NAME.format(rank.rank)
    content = read_bytes(path, _MOST_STACK_BYTES, error=CheckpointError) if path.exists() else b""
    text = content.decode("utf-8", "replace").strip()
    if not text:
        return [
            f"rank {rank.rank} wrote no stacks: process {rank.pid} on {rank.host} has ended, is "
            "stopped, or is elsewhere"
        ]
    threads = [
        thread for thread in text.split("\n\n") if not any(name in thread for name in _OWN_THREADS)
    ]
    lines = [line for thread in reversed(threads) for line in thread.splitlines()]
    rest = [f"  ... more in {path.name}"] if len(lines) > _MAX_STACK_LINES else []
    return (
        [f"stacks of rank {rank.rank}:"] + [f"  {line}" for line in lines[:_MAX_STACK_LINES]] + rest
    )
