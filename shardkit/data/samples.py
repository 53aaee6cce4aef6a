"""Samples: what a run is trained on, numbered from 0.

    order.py: which numbers      Samples.read(numbers)       stream.py: the batch of a step
    (seed, step) ------------------> x, y on the host ----------> one batch ahead

A source of samples knows neither models nor the settings of a run. It stays where it is: in files
that are mapped into memory or read piece by piece, so that its size costs nothing.
"""

from abc import ABC, abstractmethod

import numpy

TRAINING = "training"  # the parts that the data of a run is split into
VALIDATION = "validation"


class Samples(ABC):
    """Numbered samples, each an input and a target.

    Attributes
    ----------
    run_length
        So many neighbors lie together in the file (the rows of an HDF5 chunk); orders shuffle such
        runs, then the samples within a few runs.
    """

    run_length: int = 1

    @abstractmethod
    def __len__(self) -> int:
        """Return how many samples there are, at least 1."""

    @abstractmethod
    def read(self, numbers: numpy.ndarray) -> tuple:
        """Return the samples of these numbers, in their order, as fresh arrays on the host.

        Parameters
        ----------
        numbers
            [n] int64 in [0, len), in any order, repeats allowed.

        Returns
        -------
        tuple
            x [n, ...], y [n, ...]: arrays, or trees of arrays (shardkit/tree.py).

        Raises
        ------
        CorpusError
            If a sample cannot be trained on.
        OSError

        Notes
        -----
        One thread calls at a time.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a hash, in hex, that is equal if and only if the samples are the same.

        It is of all that they hold, the last of them too, and has no path in it. Those of
        shardkit read every byte of a file once, when a run starts, and later only if it was touched
        (contents.py).
        """
