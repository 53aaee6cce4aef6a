"""Training runs: text on disk, batches that depend on no rank, the loop, its reports, and text that comes out."""
from .bench import bench_run
from .loop import train_run
from .sample import generate_text, load_for_generation

__all__ = ["bench_run", "generate_text", "load_for_generation", "train_run"]
