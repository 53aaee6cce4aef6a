"""Patches of images, and their tokens: the way through the embedding of a ViT, of all rows of an
image or of some.
"""

import math

from ..ops.shape import concatenate, expand, permute, reshape
from .basic import input_tensor


def tokens_of(embedding, patches, positions, *, begins: bool = True):
    """Return the tokens of patches [batch, patches, channels * patch], each at its position.

    begins   the class token stands before them
    """
    x = embedding.patches(patches)
    if begins:
        first = expand(embedding.class_token, (x.shape[0], 1, x.shape[2]))
        x = concatenate([first, x], 1)
    return embedding.dropout(x + positions)


def cut_into_patches(embedding, x):
    """Return x [batch, channels, *image] as [batch, patches, channels * patch].

    Of the first dim of the image it may have some rows of patches alone.
    """
    x = input_tensor(x, embedding.patches.weight.dtype)
    patch = embedding.patch
    counts = [size // step for size, step in zip(x.shape[2:], patch)]
    pairs = [size for pair in zip(counts, patch) for size in pair]
    x = reshape(x, (*x.shape[:2], *pairs))
    last = 2 + 2 * len(patch)
    order = [0, *range(2, last, 2), 1, *range(3, last, 2)]
    x = permute(x, order)  # [batch, *counts, channels, *patch]
    features = embedding.channels * math.prod(patch)
    return reshape(x, (x.shape[0], math.prod(counts), features))
