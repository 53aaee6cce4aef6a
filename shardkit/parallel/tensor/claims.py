"""Claims: how the ranks of an axis share a parameter, and which of them counts it."""

from dataclasses import dataclass

from ...comm.backend import CommunicationBackend
from ...comm.collectives.ordered import ordered_all_reduce
from ...layout.box import Box
from ...layout.piece import Piece
from ...nn.module import Parameter


@dataclass(frozen=True, eq=False)
class Claim:
    """How the ranks of an axis share one parameter.

    kind      "sharded"     no other rank holds this box
              "uneven"      the same, and the boxes differ in size
              "replicated"  several hold it, and their gradients are equal by construction
              "partial"     several hold it, and each has one term of its gradient: sum_partial adds
                            them
    holders   the ranks that hold this box: all of the axis, or a sub-group; None if one alone
    is_subgroup   holders are a part of the axis: a group that apply_plan made, and that
                  close_groups closes
    """

    kind: str
    holders: CommunicationBackend | None = None
    is_subgroup: bool = False

    @property
    def is_counted(self) -> bool:
        """True on the one rank, of those that hold the box, that counts it in norms and writes it
        to files.
        """
        return self.holders is None or self.holders.rank == 0

    def __str__(self):
        if self.holders is None:
            return self.kind
        return f"{self.kind} on {self.holders.world_size} ranks"


SHARDED, UNEVEN = Claim("sharded"), Claim("uneven")


def sum_partial(parameter: Parameter, gradient):
    """Sum the gradient of a partial parameter over its holders; leave any other as it is.

    Collective over parameter.claim.holders if the claim is "partial". In place.
    gradient   of the parameter or any part of it, contiguous; the same part on all holders
    """
    if is_partial(parameter):
        ordered_all_reduce(parameter.claim.holders, gradient.reshape(-1))


def is_partial(parameter: Parameter) -> bool:
    """Return whether this rank's gradient of the parameter is one term of a sum."""
    return parameter.claim is not None and parameter.claim.kind == "partial"


def is_uneven(parameter: Parameter) -> bool:
    """Return whether ranks of the axis have boxes of different sizes of the parameter."""
    return parameter.claim is not None and parameter.claim.kind == "uneven"


def is_counted(parameter: Parameter) -> bool:
    """Return True on exactly one of the ranks that hold the parameter's box."""
    return parameter.claim is None or parameter.claim.is_counted


def global_piece(parameter: Parameter, piece: Piece) -> Piece:
    """Return a piece of the local parameter as a piece of the whole one, at the same place."""
    offset = tuple(a + b for a, b in zip(piece.box.offset, parameter.box.offset))
    return Piece(
        piece.name, Box(offset, piece.box.shape), piece.start, piece.stop, parameter.global_shape
    )
