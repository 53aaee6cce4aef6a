"""PyTorch where it is installed; elsewhere whatever test touches it is skipped, and the others run.

from torch_or_skip import torch
"""

import pytest


class _TorchOrSkip:
    """The module torch, imported when an attribute is asked for."""

    def __getattr__(self, name):
        if name.startswith("_"):  # pytest itself asks every object of a test module for such names
            raise AttributeError(name)
        return getattr(pytest.importorskip("torch"), name)


torch = _TorchOrSkip()
