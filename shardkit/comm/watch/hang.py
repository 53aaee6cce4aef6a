"""The hang report: who waits for whom, read from the ledgers of all ranks.

rank 0, 1, 3   in  all_reduce of 1,024 float32 (call 7 on group world)      they wait
rank 2         not in that call: last seen in broadcast (call 6), 12 s ago  everybody waits for it
"""

import os
import time
from collections import defaultdict
from math import inf
from pathlib import Path

from ...errors import CheckpointError
from ...files.reading import read_bytes
from ...files.removing import FILE, TEMPORARY
from .ledger import LEDGER_NAME, RecordedCall, RecordedRank, read_ledger
from .processes import is_stopped

STACKS_NAME = "rank-{:05d}.stacks"  # of one rank
HANG_NAME = "hang"  # made by the rank that reports
LEDGER_NAMES = {r"rank-\d{5,}\.(ledger|stacks)|hang": FILE, TEMPORARY: FILE}  # in a folder
_OWN_THREADS = (
    "comm/watch/watchdog.py",
    "comm/watch/own_warden.py",
    "comm/mpi/guard.py",
    "comm/watch/lifeline.py",
    "files/ownership.py",
    "in note_native_work",
)
_MAX_STACKS = 3  # ranks; the others are in the files
_MAX_RANKS = 8  # named one by one in a line
_MAX_STACK_LINES = 30
_MOST_STACK_BYTES = 1 << 24


def read_ledgers(folder) -> list[RecordedRank]:
    """Read all ledgers of a folder in rank order. Errors: FileNotFoundError if there are none."""
    ranks = []
    for path in sorted(Path(folder).glob("rank-*.ledger")):
        try:
            ranks.append(read_ledger(path))
        except (CheckpointError, FileNotFoundError):  # just being made or removed
            continue
    if not ranks:
        raise FileNotFoundError(
            f"no ledgers in {folder}; runs keep them in the folder ledger of the run folder"
        )
    return ranks


def hang_report(folder, now: float | None = None) -> str:
    """Return the lines that say what each rank waits for, or where it was when the job ended.

    folder   of the ledgers
    now      seconds since the epoch; None: the last time that any rank wrote, for a job that ended
    Errors: FileNotFoundError if there are no ledgers.
    """
    ranks = read_ledgers(folder)
    if now is None:
        now = max(
            (call.ended or call.began for rank in ranks for call in rank.calls[-1:]), default=0.0
        )
    waiting = defaultdict(list)  # (group, number, or the peer of a message) -> ranks
    for rank in ranks:
        call = rank.under_way
        if call is not None:
            waiting[call.group, call.number_on_group or -1 - call.peer].append(rank)
    lines = []
    for waiters in sorted(
        waiting.values(), key=lambda them: min(rank.under_way.began for rank in them)
    ):
        lines += _waiting_lines(waiters, {rank.rank: rank for rank in ranks}, now)
    outside = [rank for rank in ranks if rank.under_way is None]
    lines += [f"{_ranks([rank.rank])} in no call: {_last_seen(rank, now)}" for rank in outside]
    silent = sorted(set(range(ranks[0].world_size)) - {rank.rank for rank in ranks})
    if silent:
        lines.append(f"{_ranks(silent)} left no ledger here")
    full = [rank for rank in silent if _is_empty(Path(folder) / LEDGER_NAME.format(rank))]
    if full:
        lines.append(f"  there was no room on the disk for {_ranks(full)}, which may be all right")
    if (Path(folder) / HANG_NAME).exists():
        inside = sorted(
            (rank for rank in ranks if rank.under_way is not None),
            key=lambda rank: -rank.under_way.began,
        )
        # First the ranks that others wait for, then those that came last.
        for rank in [*outside, *inside][:_MAX_STACKS]:
            lines += _stack_lines(Path(folder), rank)
    return "\n".join(lines)


def hang_suspects(folder, seconds: float = inf) -> str:
    """Return a phrase that names the ranks for which the others wait.

    seconds   that a call may take; ranks that got on with work of their own within this time are
              meant only if all did
    In this order: ranks that wait for nobody, ranks of this node that are in a call, but whose
    process is stopped, whose interpreter is, or which run other code; ranks in another call.
    """
    ranks = {rank.rank: rank for rank in read_ledgers(folder)}
    missing, idle = _not_come(Path(folder), ranks, seconds)
    here = {number: rank for number, rank in ranks.items() if rank.host == os.uname().nodename}
    stopped = {number for number, rank in here.items() if is_stopped(rank.pid)}
    now = time.monotonic()
    pulses = {number: rank.pulse for number, rank in here.items() if number not in stopped}
    silent = {number: pulse.silent_seconds(now, seconds) for number, pulse in pulses.items()}
    away = {number: pulse.away_seconds(now, seconds) for number, pulse in pulses.items()}
    stuck = {number for number in pulses if silent[number]}
    busy = {number for number in pulses if away[number]}
    # a compilation, for example
    is_common = len(busy) == sum(rank.under_way is not None for rank in ranks.values())
    for named, word in (
        (idle, "missing"),
        (stopped, "stopped"),
        (stuck, "missing"),
        (set() if is_common else busy, "missing"),
        (missing, "missing"),
    ):
        if named:
            phrase = f"{_ranks(sorted(named))} {'is' if len(named) == 1 else 'are'} {word}"
            return phrase + _why(named, ranks, silent, away)
    return "all ranks are there" + _why(set(ranks) if is_common else set(), ranks, {}, away)


def _not_come(
    folder: Path, ranks: dict[int, RecordedRank], seconds: float
) -> tuple[set[int], set[int]]:
    """Return the ranks that are not in a collective call of others, and those that wait for nobody.

    seconds   ranks that got on with work of their own within this time are meant only if all did
    """
    calls = [rank.under_way for rank in ranks.values() if rank.under_way is not None]
    missing = {n for call in calls if call.number_on_group for n in _missing(call, ranks)}
    peers = {n for call in calls if not call.number_on_group for n in call.ranks}
    idle = {n for n in missing | peers if n not in ranks or ranks[n].under_way is None}
    since = inf if seconds == inf else time.time() - seconds
    at_work = {n for n in idle if n in ranks and (ranks[n].worked or -inf) > since}
    idle = idle - at_work or at_work
    without_room = {n for n in idle if _is_empty(folder / LEDGER_NAME.format(n))}
    return missing, idle - without_room or without_room  # these may be all right


def _why(named, ranks: dict[int, RecordedRank], silent, away) -> str:
    """Return what is known of ranks that are named, ready to follow them; {rank: seconds}."""
    code = _code_of(named, ranks)
    return code + (_why_silent(named, silent) or ("" if code else _why_away(named, away)))


def _code_of(named, ranks: dict[int, RecordedRank]) -> str:
    """Return what code these ranks load or compile."""
    busy = [ranks[number] for number in sorted(named) if number in ranks and ranks[number].code]
    return "".join(
        f", rank {rank.rank} is {rank.code} since {time.time() - rank.since:.0f} s"
        for rank in busy[:_MAX_STACKS]
    )


def _why_silent(named: set[int], silent: dict[int, float]) -> str:
    """Return what is to be added if the interpreter of some ranks does not run.

    silent   {rank: seconds}
    """
    stuck = sorted(number for number in named if silent.get(number))
    if not stuck:
        return ""
    seconds = min(silent[number] for number in stuck)
    whose = "its interpreter" if len(named) == 1 else f"the interpreter of {_ranks(stuck)}"
    return f": {whose} has not run for {seconds:.1f} s, native code holds its lock"


def _why_away(named: set[int], away: dict[int, float]) -> str:
    """Return what is to be added if ranks run other code inside of the call; {rank: seconds}."""
    busy = sorted(number for number in named if away.get(number))
    if not busy:
        return ""
    seconds = min(away[number] for number in busy)
    who = "it runs" if len(named) == 1 else f"{_ranks(busy)} run{'s' if len(busy) == 1 else ''}"
    return (
        f": {who} other code inside of the call for {seconds:.1f} s, perhaps a signal handler or a "
        "compilation"
    )


def late_text(folder, group: str, number: int | None, needed) -> str:
    """Return which of the ranks needed have not begun a collective, in words; "" if all have.

    Errors: FileNotFoundError if there are no ledgers.
    """
    ranks = {rank.rank: rank for rank in read_ledgers(folder)}
    late = [rank for rank in needed if not has_come(ranks.get(rank), group, number)]
    return f"{_ranks(late)} {'is' if len(late) == 1 else 'are'} missing" if late else ""


def idle_since(folder, time: float) -> str:
    """Return the ranks, in words, that are in no call and noted work of their own before this time.

    time      seconds since the epoch
    returns   "" if there are none
    Errors: FileNotFoundError if there are no ledgers.
    """
    idle = [
        rank.rank
        for rank in read_ledgers(folder)
        if rank.under_way is None
        and rank.worked is not None
        and max([rank.worked, *(call.ended or 0.0 for call in rank.calls[-1:])]) < time
    ]
    return _ranks(idle) if idle else ""


def _missing(call: RecordedCall, ranks: dict[int, RecordedRank]) -> list[int]:
    """Return the ranks that have not begun a collective call."""
    group, number = call.group, call.number_on_group
    return [rank for rank in call.ranks if not has_come(ranks.get(rank), group, number)]


def _waiting_lines(
    waiters: list[RecordedRank], ranks: dict[int, RecordedRank], now: float
) -> list[str]:
    call = waiters[0].under_way
    if call.number_on_group is None:
        return [
            f"{_ranks([rank.rank for rank in waiters])} in {call.carries} with rank "
            f"{call.peer} for {now - call.began:.1f} s, called at {call.site}"
        ]
    lines = []
    by_call = defaultdict(list)
    for rank in waiters:
        by_call[rank.under_way.carries, rank.under_way.site].append(rank.rank)
    for (carries, site), numbers in sorted(by_call.items(), key=lambda entry: -len(entry[1])):
        lines.append(
            f"{_ranks(numbers)} in {carries} (call {call.number_on_group} on group {call.group}) "
            f"for {now - call.began:.1f} s, called at {site}"
        )
    if len({carries for carries, _ in by_call}) > 1:
        lines.append(
            "  these are different calls with the same number: all ranks of a group must make the "
            "same calls"
        )
    missing = _missing(call, ranks)
    if missing:
        lines.append(f"  missing: {_ranks(missing)} of {len(call.ranks)} ranks")
    return lines


def _is_empty(path: Path) -> bool:
    """Return True for a ledger that there was no room for."""
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def has_come(rank: RecordedRank | None, group: str, number: int | None) -> bool:
    """Return True if the rank has begun the collective of this number on the group."""
    return (
        rank is not None
        and number is not None
        and any(
            call.group == group and (call.number_on_group or 0) >= number and not call.has_failed
            for call in rank.calls
        )
    )


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


def _stack_lines(folder: Path, rank: RecordedRank) -> list[str]:
    """Return the stacks of the rank's threads, innermost call first, without our own threads."""
    path = folder / STACKS_NAME.format(rank.rank)
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
    lines = [line for thread in threads for line in thread.splitlines()]
    rest = [f"  ... more in {path.name}"] if len(lines) > _MAX_STACK_LINES else []
    return (
        [f"stacks of rank {rank.rank}:"] + [f"  {line}" for line in lines[:_MAX_STACK_LINES]] + rest
    )


def _ranks(numbers: list[int]) -> str:
    """ "rank 3", "ranks 0, 1, 2", "ranks 0, 1, ... 511 (512 of them)"."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) <= _MAX_RANKS:
        return f"ranks {', '.join(map(str, numbers))}"
    return f"ranks {', '.join(map(str, numbers[:3]))}, ... {numbers[-1]} ({len(numbers)} of them)"
