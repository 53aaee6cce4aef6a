"""The newest model that trainers have published, in one process, for predictions."""

import threading
from collections.abc import Callable
from typing import Any

import numpy

from ..checkpoint.whole import load
from ..nn.module import Module


class NewestModel:
    """The newest image of a model, which is loaded when a prediction needs it.

    number   of the image, counted from 1; 0: there is none yet
    """

    def __init__(self, factory: Callable[..., Module] | None):
        self._factory = factory
        self.image: bytes = b""
        self.number = 0
        self._lock = threading.Lock()
        self._loaded: tuple[int, Module | None] = (0, None)

    def take(self, image: bytes, number: int) -> None:
        """Predict by this image from now on."""
        self.image, self.number = image, number

    def predict(self, x: Any) -> Any:
        """Return the model's output for x."""
        with self._lock:
            number, model = self._loaded
            if number < self.number or model is None:
                number, model = self.number, load(self.image, self._factory)
                self._loaded = number, model
            return model.predict(x)


def to_note(array) -> tuple[dict, numpy.ndarray]:
    """Return (facts, bytes) of an array."""
    array = numpy.ascontiguousarray(array)
    facts = {"dtype": array.dtype.str, "shape": array.shape}
    return facts, array.reshape(-1).view(numpy.uint8)


def from_note(facts: dict, body) -> numpy.ndarray:
    """Return the array that to_note() took."""
    flat = numpy.ascontiguousarray(body).view(facts["dtype"])
    return flat.reshape(facts["shape"]).copy()
