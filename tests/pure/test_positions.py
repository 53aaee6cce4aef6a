"""An argument in second place means what it means there in PyTorch, or is given by name."""

import inspect

import pytest
from torch_or_skip import torch

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

# Sizes and operands, which have names of their own here, and what PyTorch has given up.
SAME = {
    "input": "x",
    "tensor": "x",
    "pad": "padding",
    "num_embeddings": "num_rows",
    "embedding_dim": "width",
    "normalized_shape": "width",
    "decoder_layer": "layer",
    "encoder_layer": "layer",
}
GIVEN_UP = ("size_average", "reduce", "device", "_stacklevel")
# What stands elsewhere here and is refused if it is given as in PyTorch, most by its shape.
REFUSED = {
    "cross_entropy": "a weight for each class is no number to ignore",
    "binary_cross_entropy_with_logits": "weights are no reduction",
    "BCELoss": "weights are no reduction",
    "BCEWithLogitsLoss": "weights are no reduction",
    "embedding": "ids are no table",
    "layer_norm": "weight and bias have no defaults",
    "rms_norm": "a shape is no weight of the dtype of x",
    "dropout": "the context has no default",
    "Adam": "betas are no number",
    "AdamW": "betas are no number",
    "Buffer": "a shape or values",
    "Parameter": "a shape or values",
    "ParameterDict": "one argument",
    "ParameterList": "one argument",
    "split": "docs/porting.md",
}


def positions(function) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in kinds and each.name != "self"]


def pairs():
    """Yield (name, ours, PyTorch's) of functions and classes of one name."""
    rooms = [
        (nn, torch.nn),
        (ops, torch.nn.functional),
        (ops, torch),
        (nn.init, torch.nn.init),
        (sk, torch.optim),
    ]
    for here, there in rooms:
        for name in dir(here):
            found = getattr(here, name), getattr(there, name, None)
            if not name.startswith("_") and all(map(callable, found)):
                yield name, *found


def test_positional_arguments_mean_what_they_mean_in_pytorch():
    compared, wrong = 0, {}
    for name, here, there in pairs():
        try:
            ours, theirs = positions(here), positions(there)
        except ValueError:  # PyTorch says nothing of its compiled functions
            continue
        ours, theirs = [
            [SAME.get(each, each) for each in names if each not in GIVEN_UP]
            for names in (ours, theirs)
        ]
        theirs = theirs[1:] if here in (sk.SGD, sk.Adam, sk.AdamW, sk.Muon) else theirs
        compared += 1
        if name not in REFUSED:
            shared = min(len(ours), len(theirs))
            if ours[:shared] != theirs[:shared]:
                wrong[name] = ours, theirs
    assert not wrong and compared > 100


@pytest.mark.parametrize("name", [name for name, why in REFUSED.items() if " no " in why])
def test_what_stands_elsewhere_is_refused_as_it_is_given_in_pytorch(name):
    x, rows = nn.Tensor(torch.ones(4, 3).numpy()), torch.tensor([0, 1, 2, 0]).numpy()
    weight = torch.tensor([1.0, 2.0, 3.0]).numpy()
    given = {
        "cross_entropy": lambda: ops.cross_entropy(x, rows, weight),
        "binary_cross_entropy_with_logits": lambda: ops.binary_cross_entropy_with_logits(
            x, x.array, weight
        ),
        "BCELoss": lambda: nn.BCELoss(weight)(x, x.array),
        "BCEWithLogitsLoss": lambda: nn.BCEWithLogitsLoss(weight)(x, x.array),
        "embedding": lambda: ops.embedding(rows, x),
        "layer_norm": lambda: ops.layer_norm(x, (3,)),
        "rms_norm": lambda: ops.rms_norm(x, (3,)),
        "dropout": lambda: ops.dropout(x, 0.5, True),
        "Adam": lambda: sk.Adam(1e-3, (0.9, 0.95)).rate(1),
        "AdamW": lambda: sk.AdamW(1e-3, (0.9, 0.95)).rate(1),
    }
    with pytest.raises((TypeError, ValueError)):
        given[name]()
