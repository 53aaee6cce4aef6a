"""Models of transformers that tests compare with."""

from torch_or_skip import torch


def moved(model):
    """Return the model in evaluation, every parameter moved away from 0 and 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def logits_of(model, ids):
    """Return the logits of these token numbers, as a NumPy array."""
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()
