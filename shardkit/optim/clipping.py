"""Clipping by the global norm."""


def clip_factor(norm: float, maximum: float) -> float:
    """Return the factor that brings a gradient of this norm down to `maximum`, at most 1.

    Equal to torch.nn.utils.clip_grad_norm_: maximum / (norm + 1e-6). The norm must count each
    element of the model once, however many ranks hold it.
    """
    return min(1.0, maximum / (norm + 1e-6))
