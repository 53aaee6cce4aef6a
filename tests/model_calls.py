"""Collective calls of a sharded model, which ranks may mix up.

CALLS["predict"](model, folder)      makes the call; a folder for its files, the same on all ranks
"""

import numpy

import shardkit as sk

X = numpy.random.default_rng(0).normal(size=(6, 3))
Y = X[:, :1] ** 2


def evaluated(model, folder):
    with model.evaluation() as measured:
        measured.add(X, Y)


CALLS = {
    "train": lambda model, folder: model.train(X, Y),
    "predict": lambda model, folder: model.predict(X),
    "evaluation": evaluated,
    "compute_gradients": lambda model, folder: model.compute_gradients(X, Y),
    "apply_gradients": lambda model, folder: model.apply_gradients(
        numpy.zeros(model.local_parameter_shard.size), 0.1
    ),
    "gather_full_parameters": lambda model, folder: model.gather_full_parameters(),
    "set_parameters": lambda model, folder: model.set_parameters(
        numpy.zeros(model.parameter_count)
    ),
    "set_active_feature_indices": lambda model, folder: model.set_active_feature_indices([0]),
    "use_rule": lambda model, folder: model.use_rule(sk.SGD(lr=0.1)),
    "save_model": lambda model, folder: model.save_model(folder),
    "load_model": lambda model, folder: model.load_model(folder),
    "serialize": lambda model, folder: model.serialize(),
    "deserialize": lambda model, folder: model.deserialize(b""),
    "deep_copy": lambda model, folder: model.deep_copy(),
    "with_parameters": lambda model, folder: model.with_parameters(
        numpy.zeros(model.parameter_count)
    ),
}


def fsdp_model(backend, lr=0.1):
    """Return a small model that is sharded over the ranks."""
    config = sk.ShardingConfiguration(backend, optimizer=sk.SGD(lr=lr))
    return sk.FSDPModel(sk.models.MLP([3, 4, 1], dtype="float64"), config)


def message_of(model, name, folder):
    """Return what this call, whose rank is alone with it, is told."""
    try:
        CALLS[name](model, folder)
    except sk.ShardingError as error:
        return str(error)
    return "no error"
