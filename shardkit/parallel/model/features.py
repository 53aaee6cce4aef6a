"""The input features of sharded models: which are used, and how much each matters."""

from collections.abc import Sequence
from typing import Any

import numpy

from ...array.random import key_of, random_bits
from ...comm.failure.agreement import collectively
from ...comm.same import check_same
from ...errors import FeatureError
from ...nn.features import input_features
from ...nn.module import Module
from ...tree import is_tree, structure
from .history import History
from .measuring import Measurement


class Featured:
    """The contract of models that can be told which input features to look at.

    Attributes
    ----------
    wrapped_model, engine, history
        Of the sharded model that derives from this class.
    """

    wrapped_model: Module
    engine: Any  # an Engine
    history: History

    def get_active_feature_indices(self) -> list[int]:
        """Return the numbers of the input features that are used.

        Raises
        ------
        FeatureError
        """
        return list(features_of(self.wrapped_model).active)

    def set_active_feature_indices(self, indices: Sequence[int]) -> None:
        """Look at these input features only, in training and prediction. Collective.

        Parameters
        ----------
        indices
            Numbers of features, at least one.

        Raises
        ------
        FeatureError
            On all ranks.
        ShardingError
            On all ranks, if ranks name different ones.
        """
        activate_features(self.wrapped_model, indices, self.engine.mesh.world)

    def is_feature_used(self, index: int) -> bool:
        """Return whether the model looks at this input feature.

        Parameters
        ----------
        index
            Number of the feature.

        Raises
        ------
        FeatureError
        """
        return index in features_of(self.wrapped_model).active

    def get_feature_importance(self, x: Any = None, y: Any = None) -> dict[str, float]:
        """Return {feature: growth of the loss when its values are shuffled}, on all ranks.

        Collective.

        Parameters
        ----------
        x, y
            This data rank's samples; None: the last batch that was trained on. The values are
            shuffled over those of all ranks.

        Raises
        ------
        FeatureError
            On all ranks, if the model has no features, or there are no samples.
        """
        batch = self.history.last_batch if x is None else (x, y)
        check_samples_given(self.wrapped_model, batch, self.engine.mesh.world)
        return permutation_importance(self.engine, *batch)


def features_of(module):
    """Return the InputFeatures of a module.

    Raises
    ------
    FeatureError
        If it has none.
    """
    features = input_features(module)
    if features is None:
        raise FeatureError(
            f"{type(module).__name__} has no input features; models.MLP has, or give your module "
            "an attribute `features` of nn.InputFeatures that is among its blocks"
        )
    return features


def activate_features(module, indices, world) -> None:
    """Make a module look at these input features only. Collective over `world`.

    Raises
    ------
    FeatureError
        On all ranks.
    ShardingError
        On all ranks, if ranks name different ones.
    """
    with collectively(world):
        numbers = features_of(module).checked(indices)
    check_same(world, {"active features": str(list(numbers))})
    features_of(module).activate(numbers)


def check_samples_given(module, batch, world) -> None:
    """Raise FeatureError on all ranks if the module has no features, or there is no batch."""
    with collectively(world):
        features_of(module)
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

    References
    ----------
    Breiman, Random Forests (2001), section 10.
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
        bits = random_bits(key_of(seed, "importance", index), 0, len(column))
        order = numpy.argsort(bits, kind="stable")[first : first + count]
        shuffled = numpy.array(x)
        if count:
            shuffled[..., index] = column[order]
        growth[features.names[index]] = _mean_loss(engine, shuffled if count else x, y) - base
    return growth


def _mean_loss(engine, x, y) -> float:
    with Measurement(engine, {}) as measured:
        measured.add(x, y)
    return measured.loss
