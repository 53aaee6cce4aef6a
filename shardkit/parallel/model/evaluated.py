"""Loss and metrics of sharded models on samples that they do not learn from."""

from typing import Any

from ...annotations import Tree
from ...comm.mesh import Mesh
from ...nn.metrics import Metric, metrics_of
from ...nn.module import Module
from .history import History
from .measuring import Measurement, check_metrics


class Evaluated:
    """The contract of models that can be measured.

    Attributes
    ----------
    wrapped_model, engine, mesh, sharding_configuration, history
        Of the sharded model that derives from this class.
    """

    wrapped_model: Module
    engine: Any  # an Engine
    mesh: Mesh
    sharding_configuration: Any  # a ShardingConfiguration
    history: History

    def _check_open(self) -> None:
        """Errors: CommunicationError if the model is closed."""
        raise NotImplementedError

    def evaluate(self, x: Tree, y: Tree, metrics: dict[str, Metric] | None = None) -> float:
        """Return the mean loss over the parts of all data ranks, the same on all ranks. Collective.

        Nothing is learned. NaN if no label counts. get_model_metadata()["evaluation"] has the loss
        and the metrics then.

        Parameters
        ----------
        x, y
            [samples of this rank, ...], as in train; ranks may have different numbers of them, and
            none.
        metrics
            {name: Metric}; None: the model's own, which are RMSE, MAE and R2 of an MLP for
            regression, accuracy and macro F1 of one for classes.

        Raises
        ------
        ShapeError
            On all ranks, as train.
        """
        with self.evaluation(metrics) as measured:
            measured.add(x, y)
        return measured.loss

    def evaluation(self, metrics: dict[str, Metric] | None = None) -> Measurement:
        """Return what measures many batches, for a `with` block. Collective.

            with model.evaluation() as measured:
                for x, y in batches:
                    measured.add(x, y)
            print(measured.loss, measured.metrics, measured.samples)

        The figures are those of all samples, however they are divided among batches and ranks: to
        the rounding of the predictions, whose bits depend on how many are made at once. Batches may
        be uneven or empty, and ranks may add other numbers of them. The end of the block is
        collective; get_model_metadata()["evaluation"] has loss and metrics then.

        Parameters
        ----------
        metrics
            As in evaluate.

        Raises
        ------
        ConfigurationError
            On all ranks, on what are no metrics.
        ShardingError
            On all ranks, if ranks measure different ones.
        """
        self._check_open()
        metrics = metrics_of(self.wrapped_model) if metrics is None else metrics
        check_metrics(metrics, self.mesh.world)

        def note(loss, figures):
            self.history.note_evaluation(self.engine.state.step_number, loss, figures)

        return Measurement(self.engine, metrics, self.sharding_configuration.loss, note)
