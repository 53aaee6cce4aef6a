"""How far a prediction may be off: a band around the seconds of a step, from what runs of the same
program took over what was predicted for them.

    band = band_of(layout, shape, cluster, "megatron")
    seconds * band.low, seconds * band.high        between which nine of ten runs are expected

residuals.toml has a table for each program. benchmarks/published/validation_page.py writes it from
the rows that may choose constants; VALIDATION.md says how many of the others lie within. A program
that comes with shardkit and has no such rows gets the band of all programs. A layout with more
devices or parameters than the largest run of its program, or on a device that none was on, gets one
twice as wide, and a program that nobody measured one as wide as programs are apart; twice that gets
a kind of model of which no step was compared.
"""

import tomllib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from .hardware import HALVES, Cluster
from .layouts import RunLayout
from .shape import Shape
from .software import FLOAT8_SUFFIX, known_programs

RESIDUALS = Path(__file__).with_name("residuals.toml")
OWN = "ranks on processors"
KNOWN = "all programs"
BEYOND = ", beyond its runs"
UNKNOWN = "all programs, planned as mixed"
TUNED = "all programs, planned as tuned"


@dataclass(frozen=True)
class Band:
    """The residuals of the runs of a program: seconds that a step took, over those predicted.

    rows        that they come from
    low, high   between which nine of ten runs are expected
    devices, parameters   of the largest run
    on          the names of the devices of the runs; none: any
    """

    family: str
    rows: int
    low: float
    high: float
    devices: int
    parameters: float
    on: tuple[str, ...] = ()

    def beyond(self) -> "Band":
        """Return the band of a layout unlike the runs: twice as far to both sides."""
        low, high = self.low**2, self.high**2
        return replace(self, family=self.family + BEYOND, low=low, high=high)

    def around(self, seconds: float) -> tuple[float, float]:
        """Return between which seconds a step is expected to take."""
        return seconds * self.low, seconds * self.high


@lru_cache(maxsize=1)
def bands() -> dict[str, Band]:
    """Return {family: its residuals}."""
    tables = tomllib.loads(RESIDUALS.read_text(encoding="utf-8"))
    return {
        family: Band(family, **{**values, "on": tuple(values["on"])})
        for family, values in tables.items()
    }


def band_of(layout: RunLayout, shape: Shape, cluster: Cluster, program: str) -> Band:
    """Return the residuals of runs like this one, of the program of this name."""
    known = bands()
    if not shape.is_compared:
        return known[UNKNOWN].beyond()
    if cluster.cores or not set(HALVES) & set(cluster.device.peak):  # without: a core
        return known[OWN] if _is_within(known[OWN], layout, shape, cluster) else known[UNKNOWN]
    name = program.removesuffix(FLOAT8_SUFFIX)
    if name == "tuned":
        return known[TUNED]
    if name == "mixed" or name not in known_programs():
        return known[UNKNOWN]
    if name not in known:
        return known[KNOWN]
    band = known[name]
    return band if _is_within(band, layout, shape, cluster) else band.beyond()


def _is_within(band: Band, layout: RunLayout, shape: Shape, cluster: Cluster) -> bool:
    return (
        layout.devices <= band.devices
        and shape.parameter_count <= band.parameters
        and (not band.on or cluster.device.name in band.on)
    )
