"""Logits that are made when they are read, so that a loss need not have them whole.

    with late_logits():                 in this thread: around the last unit and its loss
        logits = linear(x, weight)      a LateLogits: nothing is computed yet
        logits.array                    now it is: for any loss, layer or function
        cross_entropy(logits, y)        if nobody read them, it makes some rows at a time

For vocabularies: linear() makes its output late if there are MANY_CLASSES features or more.
"""

from .autograd import Tensor, enable_grad, is_grad_enabled, no_grad

MANY_CLASSES = 4096


class LateLogits(Tensor):
    """x weight^T, [..., classes] for x [..., width] and weight [classes, width].

    compute   (x, weight) -> the product as a Tensor: what is recorded at the first use
    """

    __slots__ = ("x", "weight", "_compute", "_records", "_product")

    def __init__(self, x: Tensor, weight: Tensor, compute):
        self.x, self.weight = x, weight
        self._compute, self._records = compute, is_grad_enabled()
        self._product = None
        self.grad = None
        self.grad_is_empty = False
        self.requires_grad = self._records and (x.requires_grad or weight.requires_grad)

    @property
    def is_unread(self) -> bool:
        """True until someone has read the array."""
        return self._product is None

    @property
    def array(self):
        return self._whole().array

    @property
    def _node(self):
        return self._whole()._node

    @property
    def _memory(self):
        return self._whole()._memory

    @property
    def shape(self):
        return (*self.x.shape[:-1], self.weight.shape[0])

    @property
    def dtype(self):
        return self.x.dtype

    @property
    def ndim(self):
        return self.x.ndim

    @property
    def is_leaf(self):
        return not self.requires_grad

    def _whole(self) -> Tensor:
        """Return the product, computed at the first call."""
        if self._product is None:
            with enable_grad() if self._records else no_grad():
                self._product = self._compute(self.x, self.weight)
        return self._product
