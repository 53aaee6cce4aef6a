"""Clipping by the global norm."""


def clip_factor(norm: float, maximum: float) -> float:
    """The factor that brings a gradient of this norm down to `maximum`; 1 if it is not above.

    As torch.nn.utils.clip_grad_norm_: maximum / (norm + 1e-6), at most 1. The norm must count each
    element of the model once, whoever holds copies of it.
    """
    return min(1.0, maximum / (norm + 1e-6))
