"""How near the planner is to rows that chose nothing, by the programs and bands that a user has.

figures(judging(), families)      errors, bias, band, verdicts about memory
pick_regrets(families)            what the layout predicted to be the quickest took more
"""

from dataclasses import dataclass
from statistics import mean

from blind_runs import BlindRun, blind_families, drawn
from published_runs import CLUSTER, Point, hardware
from residuals import as_program, by_program, program_name, ratio

from shardkit.plan import MIXED
from shardkit.plan.band import band_of

_FEWEST = 3  # runs of a sweep
_BLIND_MEMORY = "llama"  # families that say which runs ended without memory


@dataclass(frozen=True)
class Judged:
    """Figures of rows: errors are those of the seconds, predicted over measured, minus one.

    within   the part of the rows that the printed band holds
    fits     the part of verdicts, fits or not, that is right; 0 without any
    """

    rows: int
    error: float
    bias: float
    largest: float
    within: float
    fits: float
    verdicts: int


def figures(rows: list[Point], families: list[str] = ()) -> Judged:
    """Return the figures of these rows, with the verdicts on these families."""
    errors = [1 / ratio(row) - 1 for row in rows]
    sweeps = [blind_families()[name] for name in families if name.startswith(_BLIND_MEMORY)]
    verdicts = [row.fits == row.has_run for sweep in sweeps for row in sweep]
    return Judged(
        len(rows),
        mean(map(abs, errors)),
        mean(errors),
        max(map(abs, errors)),
        mean(is_within(row) for row in rows),
        mean(verdicts) if verdicts else 0.0,
        len(verdicts),
    )


def is_within(row: Point, name: str = "") -> bool:
    """Return whether the band holds a row, planned as its program or as the one of this name."""
    layout, shape, cluster = row.layout, row.shape, row.cluster or hardware(CLUSTER)
    band = band_of(layout, shape, cluster, name or program_name(row))
    return band.low <= ratio(row) <= band.high


def within_as_mixed(rows: list[Point]) -> float:
    """Return the part of the rows that the band holds where nobody knows their program."""
    return mean(is_within(as_program(row, MIXED), MIXED.name) for row in rows)


def by_family() -> dict[str, list[BlindRun]]:
    """Return {family that judges: its runs}."""
    names = drawn([*blind_families()])[1]
    return {name: [row for row in blind_families()[name] if row.has_run] for name in names}


def judged_programs(rows: list[Point]) -> dict[str, Judged]:
    """Return {program: figures of its rows}."""
    return {name: figures(own) for name, own in sorted(by_program(rows).items())}


def pick_regrets(families: list[str]) -> list[float]:
    """Return, for each sweep, what the run that is predicted to be the quickest took more than the
    quickest. A sweep has the runs of a family, a program, a model and a number of devices.
    """
    sweeps = {}
    for name in families:
        for row in blind_families()[name]:
            key = name, row.software.name, row.shape, row.layout.devices
            sweeps.setdefault(key, []).append(row)
    ran = [[row for row in sweep if row.has_run] for sweep in sweeps.values()]
    return [_regret(sweep) for sweep in ran if len(sweep) >= _FEWEST]


def memory_errors(rows: list[BlindRun]) -> list[float]:
    """Return the errors of memory, of rows that say what theirs was."""
    return [row.gigabytes / row.measured_gigabytes - 1 for row in rows if row.measured_gigabytes]


def _regret(sweep: list[BlindRun]) -> float:
    seconds = [row.cost.seconds * row.ratio for row in sweep]
    picked = min(range(len(sweep)), key=lambda number: sweep[number].cost.seconds)
    return seconds[picked] / min(seconds) - 1
