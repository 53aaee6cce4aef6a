"""Training runs: the loop over the steps of a task, its reports, its end and its beginning."""

from .bench import bench_run
from .elastic import ElasticTraining
from .loop import train_run
from .survivors import SurvivingRun

__all__ = [
    "ElasticTraining",
    "SurvivingRun",
    "bench_run",
    "train_run",
]
