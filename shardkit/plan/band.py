"""How far a prediction may be off: a band around the seconds of a step, from what similar runs took
over what was predicted for them.

    band = band_of(layout, shape, cluster)
    seconds * band.low, seconds * band.high        nine of ten runs of the family were in between

residuals.toml has a table for each family of runs. benchmarks/published/validation_page.py writes
it from the rows that judge; VALIDATION.md says which of those were seen before. A layout with more
devices or parameters than the largest run of its family, or on a device that none was on, gets the
widest band.
"""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .hardware import HALVES, Cluster
from .layouts import RunLayout
from .shape import Shape

RESIDUALS = Path(__file__).with_name("residuals.toml")
SHARDED = "data ranks alone"
CUT = "tensor and pipeline"
OWN = "ranks on processors"
BEYOND = "beyond all runs"


@dataclass(frozen=True)
class Band:
    """The residuals of a family of runs: seconds that a step took, over those predicted.

    rows        that they come from
    low, high   between which nine of ten lie
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


def band_of(layout: RunLayout, shape: Shape, cluster: Cluster) -> Band:
    """Return the residuals of runs like this one."""
    known = bands()
    if cluster.cores or not set(HALVES) & set(cluster.device.peak):  # without: a core
        family = OWN
    elif layout.mesh.replica > 1:
        family = CUT
    else:
        family = SHARDED
    band = known[family]
    is_beyond = (
        layout.devices > band.devices
        or shape.parameter_count > band.parameters
        or bool(band.on)
        and cluster.device.name not in band.on
    )
    return known[BEYOND] if is_beyond else band
