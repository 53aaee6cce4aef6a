"""The ends of a ViT: from rows of images to tokens, and from the class token to logits.

    image   rows of patches     0 0 0 0 | 1 1 1 1 | 2 2 2 2         class token first, then patches
    tokens                    c 0 0 0 0   1 | 1 1 1 2 2 2 2         13 on 2 ranks: 7 and 6

Parts of tokens are even, so they begin and end within a row of patches: that row goes to both.
"""

from ...nn.layers.patches import cut_into_patches, tokens_of
from ...nn.ops.shape import getitem
from ..conjugate import all_reduce
from .axis import GRID_DIM, CutLayer, DomainAxis
from .others import CutDropout
from .rows import rows_of


class CutPatchEmbedding(CutLayer):
    """A PatchEmbedding of own rows of images [batch, channels, own, ...]: own tokens [batch, own,
    width] of class token and patches.
    """

    def __init__(self, axis: DomainAxis, whole):
        super().__init__(axis, whole)
        self.behind = DomainAxis(axis.group, 1, follows=axis.made is not None)
        self.dropout = CutDropout(self.behind, whole.dropout)

    def forward(self, x):
        axis, whole = self.axis, self._whole  # a PatchEmbedding
        height = axis.length(x, self.path_in_model)
        num_tokens = whole.positions.global_shape[0]
        tokens = self.behind.spans_of_output(num_tokens, height, self.path_in_model)
        in_row = (num_tokens - 1) * whole.patch[0] // whole.image[0]
        spans = tuple([_rows_of_patches(span, in_row, whole.patch[0]) for span in tokens])
        x = rows_of(x, axis.group, GRID_DIM, height, spans)
        first, stop = tokens[axis.group.rank]
        patches = cut_into_patches(whole, x)
        begin = max(first - 1, 0) % in_row
        own = slice(begin, begin + stop - max(first, 1))
        patches = getitem(patches, (slice(None), own))
        positions = getitem(self.positions, slice(first, stop))
        return tokens_of(self, patches, positions, begins=first == 0)


def _rows_of_patches(tokens, in_row: int, height: int) -> tuple[int, int]:
    """Return [start, stop) of the rows of the image that these tokens are of.

    in_row   patches of a row of them; height: of one
    """
    first, stop = (max(token - 1, 0) for token in tokens)
    return first // in_row * height, -(-stop // in_row) * height


class CutViTHead(CutLayer):
    """A ViTHead: the class token, which the first rank has, goes to all; logits are whole."""

    leaves_parts = False

    def forward(self, x):
        self.axis.length(x, self.path_in_model)
        group = self.axis.group
        own = getitem(x, (slice(None), slice(1)))
        first = all_reduce(own * float(group.rank == 0), group)
        return self._whole.forward(first)
