"""Bytes of activations: what a layer keeps from its forward to its backward, with tensor and
sequence parallelism and recomputation.

Each row of a table is an array that is kept for each token: how many elements, of how many bytes,
and where it lives:

    inside    in a tensor-parallel region: each tensor rank has its part
    outside   whole on every tensor rank, or a slice of the sequence under sequence parallelism
    entered   the input of a region: whole also under sequence parallelism, unless the program
              gathers it again
    scores    inside, and selective recomputation computes it again

or it is kept for something else than a token:

    sample    for each sample, however long
    edge      for each side of a part of a sample where a rank meets others
    call      once, whatever the samples
    matrix    once, and each tensor rank has its part

For the programs of Megatron-LM the sum of the rows is s b h (34 + 5 a s / h) bytes (arXiv
2205.05198, equation 1); the tests compare the variants with its table 2. For shardkit the rows are
the arrays that its tape holds; the tests compare them with a tape.
"""

from dataclasses import dataclass
from functools import lru_cache, singledispatch

from ..nn.late import MANY_CLASSES
from ..nn.ops.blocks import ROWS_OF_BLOCK, are_worth_it, suit_blocks
from .layouts import RunLayout
from .model import ModelShape
from .shape import Shape, Share
from .software import Software


@dataclass(frozen=True)
class Row:
    """Elements for each token, sample or edge, and where they live.

    item_bytes   None: those of the program's activations
    """

    elements: float
    where: str
    item_bytes: float | None = None


@dataclass(frozen=True)
class BlockBytes:
    """Bytes of one block and micro-batch on one rank.

    kept      from the forward to the backward
    deferred  from the backward to the weight gradients, where these are apart
    working   beside what is kept, at the worst moment of the backward
    """

    kept: float
    deferred: float
    working: float


@lru_cache(maxsize=8192)
def block_bytes(
    shape: Shape,
    software: Software,
    block: str,
    share: Share,
    tensor: int,
    recomputation: str,
    is_sequence_parallel: bool,
) -> BlockBytes:
    """Return the bytes of a block of this kind for a share of a micro-batch.

    Recomputation of whole layers keeps only their inputs.
    """

    counts = {"sample": share.samples, "edge": share.edges, "call": 1, "matrix": 1}

    def total(rows):
        return sum(
            _row_bytes(row, software, tensor, recomputation, is_sequence_parallel)
            * counts.get(row.where, share.items)
            for row in rows
        )

    rows = tables(shape, software)
    by_blocks = f"{block} by blocks"
    is_by_blocks = by_blocks in rows and are_worth_it(share.items, shape.input_elements(block))
    kept, deferred, working = rows[by_blocks if is_by_blocks else block]
    sizes = BlockBytes(total(kept), total(deferred), total(working))
    if recomputation == "full" and shape.is_recomputed(block, software.splits_backward):
        only_input = total([Row(shape.input_elements(block), "outside")])
        return BlockBytes(only_input, sizes.deferred, sizes.working + sizes.kept - only_input)
    return sizes


def boundary_bytes(shape: Shape, software: Software, layout: RunLayout) -> float:
    """Return the bytes of an activation that one rank sends to the next stage."""
    whole = layout.share(shape).items * shape.message_elements
    whole *= software.activation_bytes
    is_part = layout.is_sequence_parallel or software.scatters_transfers
    return whole / layout.tensor if is_part else whole


def _row_bytes(
    row: Row, software: Software, tensor: int, recomputation: str, is_sequence_parallel: bool
) -> float:
    if row.where == "scores" and recomputation == "selective":
        return 0.0
    is_cut = row.where in ("inside", "scores", "matrix")
    if is_sequence_parallel:
        gathers_again = not software.splits_backward
        is_cut = is_cut or row.where == "outside" or gathers_again and row.where != "whole"
    return row.elements * (row.item_bytes or software.activation_bytes) / (tensor if is_cut else 1)


@singledispatch
def tables(shape: Shape, software: Software) -> dict[str, tuple[list[Row], list[Row], list[Row]]]:
    """Return {block: rows that are kept, deferred, and worked with}; one function for each kind of
    shape.
    """
    raise TypeError(f"no table of activations for a {type(shape).__name__}")


@singledispatch
def held_share(shape: Shape, software: Software, share: Share) -> float:
    """Return how much is held for a byte of activations of a share of a micro-batch."""
    return software.arena_share


@tables.register
def _(shape: ModelShape, software: Software) -> dict:
    if not software.splits_backward:
        return _of_megatron(shape, software)
    is_large = shape.vocabulary >= MANY_CLASSES and suit_blocks(software.dtype)
    return _of_tape(shape) | (_of_blocks(shape) if is_large else {})


def _of_tape(shape: ModelShape) -> dict:
    """Return the rows of shardkit: flash attention keeps a number per head and token instead of
    scores, dropout keeps nothing.
    """
    width = shape.width
    kv = shape.kv_width
    hidden = shape.num_hidden
    vocabulary = shape.vocabulary
    norm, gates = (1, 2) if shape.is_gated else (2, 1)
    kept = [
        Row(2 * width, "outside"),  # inputs of both norms
        Row(2 * norm, "outside", 4),  # their rows
        Row(2 * width, "entered"),  # inputs of attention and feed-forward
        Row(2 * width + 2 * kv, "inside"),  # q, result, k, v
        Row(shape.heads, "inside", 4),  # a number per head
        Row(gates * hidden, "inside"),  # before the nonlinearity, whose output is made again
    ]
    # the inputs of all matrices, which are multiplied with gradients
    multiplied = [Row(2 * width, "entered"), Row(width + gates * hidden, "inside")]
    gradients = [Row(2 * width, "outside"), Row(width + 2 * kv + gates * hidden, "inside")]
    head = [
        Row(width, "outside"),
        Row(width, "entered"),
        Row(vocabulary, "inside"),
        Row(norm + 2, "outside", 4),
    ]
    working = [Row(2 * width, "outside"), Row((gates + 1) * hidden, "inside")]
    head_deferred = [Row(width, "entered"), Row(vocabulary, "inside")]
    head_working = [Row(vocabulary, "inside"), Row(2 * width, "outside")]
    return {
        "embedding": ([], [], [Row(width, "outside")]),
        "layer": (kept, multiplied + gradients, working),
        "head": (head, head_deferred, head_working),
    }


def _of_blocks(shape: ModelShape) -> dict:
    """Return the rows of a head whose logits are made by blocks of rows (nn/ops/blocks.py): kept
    are the gradients, and of logits only a block is there.
    """
    width, vocabulary = shape.width, shape.vocabulary
    norm = 1 if shape.is_gated else 2
    kept = [
        Row(width, "outside"),
        Row(width, "entered"),  # the gradient of what is multiplied
        Row(norm, "outside", 4),
        Row(vocabulary * width, "matrix", 4),  # the gradient of the weight
    ]
    deferred = [Row(vocabulary * width, "matrix", 4)]
    block = Row(ROWS_OF_BLOCK * vocabulary, "matrix", 4)
    return {"head by blocks": (kept, deferred, [block, Row(2 * width, "outside")])}


def _of_megatron(shape: ModelShape, software: Software) -> dict:
    """Return the rows of Megatron-LM and similar programs: what each operation reads, and masks of
    dropout in bytes (arXiv 2205.05198, 4.1).
    """
    width = shape.width
    kv = shape.kv_width
    hidden = shape.num_hidden
    scores = shape.heads * shape.sequence_length
    gates = 2 if shape.is_gated else 1
    kept = [
        Row(4 * width, "outside"),
        Row(2 * width + 2 * kv, "inside"),
        Row((gates + 1) * hidden, "inside"),
    ]
    if software.masks_dropout:
        kept.append(Row(2 * width, "outside", 1))
    largest = 2 * hidden
    if software.keeps_scores:  # the softmax, its dropout, and the mask
        kept += [Row(2 * scores, "scores"), Row(scores, "scores", 1)]
        largest = max(largest, scores)
    else:  # the result, and a number per head
        kept += [Row(width, "inside"), Row(shape.heads, "inside", 4)]
    working = [Row(2 * width, "outside"), Row(largest, "inside")]
    where = "inside" if software.cuts_logits else "whole"
    head = [Row(2 * width, "outside"), Row(shape.vocabulary, where, software.logits_bytes)]
    mask = [Row(width, "outside", 1)] if software.masks_dropout else []
    return {
        "embedding": (mask, [], [Row(width, "outside")]),
        "layer": (kept, [], working),
        "head": (head, [], [Row(shape.vocabulary, where)]),
    }
