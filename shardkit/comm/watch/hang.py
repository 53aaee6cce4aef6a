"""The hang report: who waits for whom, read from the ledgers of all ranks.

rank 0, 1, 3   in  all_reduce of 1,024 float32 (call 7 on group world)      they wait
rank 2         not in that call: last seen in broadcast (call 6), 12 s ago  everybody waits for it
"""

import time
from collections import defaultdict
from pathlib import Path
from socket import gethostname

from ...errors import CheckpointError
from .ledger import RecordedCall, RecordedRank, read_ledger
from .warden import is_stopped

STACKS_NAME = "rank-{:05d}.stacks"  # of one rank
HANG_NAME = "hang"  # made by the rank that reports
_OWN_THREADS = ("comm/watch/watchdog.py", "comm/failure/guard.py", "comm/watch/lifeline.py")
_MAX_STACKS = 3  # ranks; the others are in the files
_MAX_RANKS = 8  # named one by one in a line
_MAX_STACK_LINES = 30


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
            waiting[call.group, call.number_on_group or -1 - call.ranks[0]].append(rank)
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
    if (Path(folder) / HANG_NAME).exists():
        inside = sorted(
            (rank for rank in ranks if rank.under_way is not None),
            key=lambda rank: -rank.under_way.began,
        )
        # First the ranks that others wait for, then those that came last.
        for rank in [*outside, *inside][:_MAX_STACKS]:
            lines += _stack_lines(Path(folder), rank)
    return "\n".join(lines)


def hang_suspects(folder) -> str:
    """Return a phrase that names the ranks for which the others wait.

    In this order: ranks that wait for nobody, ranks of this node whose process is stopped in a
    call, ranks that wait in another call.
    """
    ranks = {rank.rank: rank for rank in read_ledgers(folder)}
    calls = [rank.under_way for rank in ranks.values() if rank.under_way is not None]
    missing = {
        number
        for call in calls
        for number in call.ranks
        if call.number_on_group is not None and not _has_come(ranks.get(number), call)
    }
    peers = {number for call in calls if call.number_on_group is None for number in call.ranks}
    idle = {
        number
        for number in missing | peers
        if number not in ranks or ranks[number].under_way is None
    }
    stopped = {
        number
        for number, rank in ranks.items()
        if rank.host == gethostname() and is_stopped(rank.pid)
    }
    for named, word in ((idle, "missing"), (stopped, "stopped"), (missing, "missing")):
        if named:
            is_word = "is" if len(named) == 1 else "are"
            return f"{_ranks(sorted(named))} {is_word} {word}{_code_of(named, ranks)}"
    return f"all ranks are there{_code_of(ranks, ranks)}"


def _code_of(numbers, ranks: dict[int, RecordedRank]) -> str:
    """Return what code these ranks load or compile, ready to follow their names."""
    busy = [ranks[number] for number in sorted(numbers) if number in ranks and ranks[number].code]
    return "".join(
        f", rank {rank.rank} is {rank.code} since {time.time() - rank.since:.0f} s"
        for rank in busy[:_MAX_STACKS]
    )


def _waiting_lines(
    waiters: list[RecordedRank], ranks: dict[int, RecordedRank], now: float
) -> list[str]:
    call = waiters[0].under_way
    if call.number_on_group is None:
        return [
            f"{_ranks([rank.rank for rank in waiters])} in {call.carries} with rank "
            f"{call.ranks[0]} for {now - call.began:.1f} s, called at {call.site}"
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
    missing = [rank for rank in call.ranks if not _has_come(ranks.get(rank), call)]
    if missing:
        lines.append(f"  missing: {_ranks(missing)} of {len(call.ranks)} ranks")
    return lines


def _has_come(rank: RecordedRank | None, call: RecordedCall) -> bool:
    """Return True if the rank has begun that call."""
    return rank is not None and any(
        c.group == call.group
        and (c.number_on_group or 0) >= call.number_on_group
        and not c.has_failed
        for c in rank.calls
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
    text = path.read_text(errors="replace").strip() if path.exists() else ""
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
