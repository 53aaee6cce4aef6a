"""CUDA graphs: what a stream was told while it was captured, done as often as it is launched."""

import numpy

from .._machine import machine


class Graph:
    """Made by Stream.end_capture."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError(
            "currently this class cannot be initiated by the user and must be created via stream "
            "capture"
        )

    @classmethod
    def _of(cls, capture):
        self = cls.__new__(cls)
        self._capture = capture
        return self

    def launch(self, stream=None):
        queue = machine.stream if stream is None else stream._queue
        queue.finish_before()
        machine.launched("graph")
        with numpy.errstate(all="ignore"):
            for work in self._capture.works:
                work()
        for block in self._capture.targets:
            block.mark_written(queue)
