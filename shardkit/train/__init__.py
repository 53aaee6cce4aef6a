"""Training runs: text on disk, batches that depend on no rank, the loop, its reports, and text that
comes out.
"""

from .bench import bench_run
from .elastic import ElasticTraining
from .loop import train_run
from .sample import generate_text, load_for_generation
from .survivors import SurvivingRun

__all__ = [
    "ElasticTraining",
    "SurvivingRun",
    "bench_run",
    "generate_text",
    "load_for_generation",
    "train_run",
]
