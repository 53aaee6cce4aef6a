"""Parts of what one product makes of several weights (gpu/joint.py): each is an input by itself."""

from typing import Any, Protocol

from ..autograd import Tensor


class PlaceOfPart(Protocol):
    """Where the gradient of one part belongs."""

    def take(self) -> Any:
        """Return the memory for the gradient, once in a backward; None after that."""

    def take_after(self, gradient: Any) -> Any:
        """Return the memory for what is made of a gradient, element by element or pair by pair:
        its own if that is the place.
        """


class JointPart(Tensor):
    """A part of what gpu.joint.joint_linear made, whose array nobody else reads.

    place   where the gradient of the part belongs
    """

    __slots__ = ("place",)
    place: PlaceOfPart

    @classmethod
    def of(cls, output: Tensor, place: PlaceOfPart) -> "JointPart":
        """Return the output of an operation as a part."""
        self = cls.__new__(cls)
        self.array, self._node, self._memory = output.array, output._node, output._memory
        self.grad, self.grad_is_empty, self.requires_grad = None, False, output.requires_grad
        self.place = place
        return self
