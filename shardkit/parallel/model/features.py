"""Input features of sharded models: which are used, and how much each matters."""

import numpy

from ...array.random import key_of, random_bits
from ...errors import FeatureError
from ...nn.features import input_features


def features_of(module):
    """The InputFeatures of a module. Errors: FeatureError if it has none."""
    features = input_features(module)
    if features is None:
        raise FeatureError(
            f"{type(module).__name__} has no input features; models.MLP has, or give your module an attribute "
            "`features` of nn.InputFeatures that is among its blocks"
        )
    return features


def permutation_importance(model, x, y) -> dict[str, float]:
    """How much the loss grows when a feature's values are shuffled among the samples of each data
    rank.

    Collective: x [samples of this rank, features], y. The same figures on all ranks; 0 for inactive
    features, whatever they hold. The order of shuffling depends on the seed and the feature alone.
    Source: Breiman, Random Forests (2001), section 10.
    """
    features, seed = features_of(model.wrapped_model), model.sharding_configuration.seed
    base = model.engine.evaluate(x, y)
    growth = {name: 0.0 for name in features.names}
    for index in features.active:
        shuffled = numpy.array(x)
        order = numpy.argsort(
            random_bits(key_of(seed, "importance", index), 0, len(shuffled)), kind="stable"
        )
        shuffled[:, index] = shuffled[order, index]
        growth[features.names[index]] = model.engine.evaluate(shuffled, y) - base
    return growth
