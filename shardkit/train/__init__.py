"""Training runs: the loop over the steps of a task, its reports, its end and its beginning."""

from ..public import public_names

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
