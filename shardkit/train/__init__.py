"""Training runs: the loop over the steps of a task, its reports, its end and its beginning."""

from typing import TYPE_CHECKING

from ..public import public_names

if TYPE_CHECKING:
    from ..parallel.model.callback import Callback as Callback
    from .bench import bench_run as bench_run
    from .elastic import ElasticTraining as ElasticTraining
    from .loop import train_run as train_run
    from .survivors import SurvivingRun as SurvivingRun
    from .training import Training as Training
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            ".parallel.model.callback": "Callback",
            "bench": "bench_run",
            "elastic": "ElasticTraining",
            "loop": "train_run",
            "survivors": "SurvivingRun",
            "training": "Training",
        },
    )
