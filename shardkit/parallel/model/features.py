"""The input features of sharded models: which are used, and how much each matters."""

import numpy

from ...array.random import key_of, permutation
from ...comm.failure.agreement import collectively
from ...comm.same import alike
from ...errors import FeatureError
from ...nn.features import input_features
from ...tree import is_tree, structure
from .learning import History
from .measuring import Measurement


class Features:
    """The input features of one model, as ShardedModel says of its members."""

    def __init__(self, engine, history: History):
        self._engine, self._history = engine, history

    def active(self) -> list[int]:
        """Return the numbers of those that are used. Errors: FeatureError if it has none."""
        return list(features_of(self._engine.model).active)

    def activate(self, indices) -> None:
        """Use these only. Collective."""
        world = self._engine.mesh.world
        with alike(world, call="set_active_feature_indices") as facts:
            features = features_of(self._engine.model)
            numbers = features.checked(indices)
            facts["active features"] = str(list(numbers))
        features.activate(numbers)

    def importance(self, x, y) -> dict[str, float]:
        """Return {feature: growth of the loss}, on the last batch if x is None. Collective."""
        batch = self._history.last_batch if x is None else (x, y)
        check_samples_given(self._engine, batch)
        return permutation_importance(self._engine, *batch)


def features_of(module):
    """Return the InputFeatures of a module.

    Errors: FeatureError if it has none.
    """
    features = input_features(module)
    if features is None:
        raise FeatureError(
            f"{type(module).__name__} has no input features; models.MLP has, or give your module "
            "an attribute `features` of nn.InputFeatures that is among its blocks"
        )
    return features


def check_samples_given(engine, batch) -> None:
    """Raise FeatureError on all ranks if the model has no features, or there is no batch."""
    with collectively(engine.mesh.world):
        features_of(engine.model)
        if batch is None:
            raise FeatureError("importance is measured on samples; pass x and y, or train first")
        if is_tree(batch[0]):
            raise FeatureError(
                f"importance shuffles the columns of x, but x is {structure(batch[0])}; wanted one "
                "array [samples, features]"
            )


def permutation_importance(engine, x, y) -> dict[str, float]:
    """Return by how much the loss grows when a feature's values are shuffled over all samples.

    Collective: x [samples of this rank, features], y; a rank may have none. The figures are the
    same on all ranks, and 0 for inactive features, whatever they hold. The order of shuffling
    depends on the seed and the feature alone: samples of all data ranks, in the order of the ranks,
    are one set, however they are divided.

    Source: Breiman, Random Forests (2001), section 10.
    """
    features, seed = features_of(engine.model), engine.config.seed
    with collectively(engine.mesh.world):
        x, y, count = engine.evaluation.own_samples(x, y)
    base = _mean_loss(engine, x, y)
    growth = {name: 0.0 for name in features.names}
    for index in features.active:
        data = engine.mesh.group("data")
        columns = data.all_gather_object(x[..., index] if count else None)
        given = [column for column in columns if column is not None]
        if not given:
            raise FeatureError("importance is measured on samples, but no rank has any")
        column = numpy.concatenate(given)
        first = sum(len(each) for each in columns[: data.rank] if each is not None)
        order = permutation(key_of(seed, "importance", index), len(column))[first : first + count]
        shuffled = numpy.array(x)
        if count:
            shuffled[..., index] = column[order]
        growth[features.names[index]] = _mean_loss(engine, shuffled if count else x, y) - base
    return growth


def _mean_loss(engine, x, y) -> float:
    with Measurement(engine, {}) as measured:
        measured.add(x, y)
    return measured.loss
