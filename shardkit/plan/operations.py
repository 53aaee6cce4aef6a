"""Seconds of a block on one tensor rank: its matrix products, its passes over memory, and its
tensor-parallel collectives.

    layer, forward   norm | q k v | attention | output | add | norm | up | nonlinearity | down | add
                           ---------- region ---------              ---------- region --------
                        enter                       leave        enter                      leave

Products follow the efficiency curve of the device, everything else the bytes that it moves.
Backward has two parts: the gradient of the input, which the stage before waits for, and those of
the weights. Inside and outside of a region count as in arXiv 2205.05198, section 4.
"""

from dataclasses import dataclass
from functools import lru_cache, singledispatch
from math import prod

from ..layout.cuts import even_runs
from .collectives import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, RankGroup, collective_seconds
from .hardware import Cluster
from .model import ModelShape
from .overlap import exposed_seconds
from .shape import Shape, Share, hashed_once, share_of
from .software import Software
from .windows import keys_around, mean_of_layers, seen_part


@dataclass(frozen=True)
class BlockSeconds:
    """Seconds of one block and micro-batch: forward, gradient of the input (with recomputation),
    gradients of weights.

    communication   the part of these in tensor-parallel collectives
    """

    forward: float
    backward: float
    weight: float
    communication: float = 0.0


@hashed_once
@dataclass(frozen=True)
class Setting:
    """What the seconds of a block depend on besides the block."""

    shape: Shape
    software: Software
    cluster: Cluster
    micro_batch: int
    tensor: int
    recomputation: str
    is_sequence_parallel: bool
    cut: tuple[int, ...] = (1,)

    @property
    def domain(self) -> int:
        """Ranks that share each sample."""
        return prod(self.cut)

    @property
    def share(self) -> Share:
        """The largest share of a micro-batch that a rank has."""
        return share_of(self.shape, self.micro_batch, self.cut)

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on this rank."""
        return self.share.items

    @property
    def outside(self) -> float:
        """Tokens outside of the regions on this rank."""
        return self.tokens / self.tensor if self.is_sequence_parallel else self.tokens

    def product(self, m: float, n: float, k: float, **kwargs) -> float:
        return self.cluster.device.product_seconds(
            m, n, k, self.software.dtype, item_bytes=self.software.activation_bytes, **kwargs
        )

    def products(self, flops: float, count: int) -> float:
        """Return the seconds of so many alike products, of these operations together, that are
        bound by arithmetic.
        """
        device, dtype = self.cluster.device, self.software.dtype
        edge = (flops / 2 / count) ** (1 / 3)
        return flops / (device.peak_of(dtype) * device.fraction(edge))

    def linear(self, m: float, n: float, k: float) -> float:
        """Return the seconds of a product of a layer with one of its matrices."""
        if not self.software.casts:
            return self.product(m, n, k)
        return self.cluster.device.product_seconds(
            m,
            n,
            k,
            self.software.linear_dtype,
            item_bytes=self.software.activation_bytes,
            operand_bytes=1,
        )

    def cast(self, count: float) -> float:
        """Return the seconds to cast so many elements for products, and to scale them."""
        return cast_seconds(self.cluster, self.software, count)

    def between_tensor(self, operation: str, num_bytes: float) -> float:
        """Return the seconds of a collective of the tensor ranks."""
        whole = num_bytes / self.software.tensor_share
        if self.tensor > self.cluster.devices and num_bytes:  # they are on several nodes
            whole += self.software.ramp_bytes
        return collective_seconds(self.cluster, operation, whole, RankGroup(self.tensor, 1))

    def elements(self, count: float) -> float:
        """Return the seconds to move this many activations."""
        num_bytes = count * self.software.activation_bytes * self.software.pass_factor
        return self.cluster.device.pass_seconds(num_bytes)

    def num_bytes(self, count: float) -> float:
        """Return the seconds to move this many bytes."""
        return self.cluster.device.pass_seconds(count)

    def calls(self, count: float) -> float:
        return count * self.cluster.device.call_seconds


def cast_seconds(cluster: Cluster, software: Software, count: float) -> float:
    """Return the seconds to cast so many elements for products, and to scale them."""
    return cluster.device.pass_seconds(count * software.cast_bytes)


@lru_cache(maxsize=16384)
def block_seconds(block: str, at: Setting) -> BlockSeconds:
    """Return the seconds of a block of this kind."""
    return seconds(at.shape, block, at)


@singledispatch
def seconds(shape: Shape, block: str, at: Setting) -> BlockSeconds:
    """Return the seconds of a block; one function for each kind of shape."""
    raise TypeError(f"no seconds of a {type(shape).__name__}")


@seconds.register
def _(shape: ModelShape, block: str, at: Setting) -> BlockSeconds:
    return {"embedding": _embedding, "layer": _layer, "head": _head}[block](at)


# ---- a layer -------------------------------------------------------------------------------------


def _layer(at: Setting) -> BlockSeconds:
    shape = at.shape
    software = at.software
    tensor = at.tensor
    tokens = at.tokens
    hidden = shape.num_hidden / tensor
    products = _layer_products(at)
    core, core_backward = _attention(at)
    cut, cut_backward = _from_other_parts(at, core, core_backward)
    norms = 2 * 2 * at.outside * shape.width
    adds = 2 * 3 * at.outside * shape.width
    masks = 2 * at.outside * shape.width * software.masks_dropout  # bytes
    nonlinear = (3 if shape.is_gated else 2) * tokens * hidden
    rotary = 2 * tokens * (shape.width + shape.kv_width) / tensor * shape.is_gated
    casts = _casts(at)
    ahead = _in_the_open(at, _regions(at, 2), products[0])
    back = _in_the_open(at, _regions(at, 2) + _gathered_again(at, 2), products[1] + products[2])
    forward = (
        products[0]
        + core
        + casts[0]
        + at.elements(norms + adds + nonlinear + rotary)
        + at.num_bytes(masks)
        + at.calls(software.calls_per_layer)
    )
    forward += ahead + cut
    share = software.recomputed_share
    selective = share * (forward - core - ahead) if share else core
    again = {"none": 0.0, "selective": selective, "full": forward}[at.recomputation]
    backward = (
        products[1]
        + core_backward
        + casts[1]
        + at.elements(1.5 * norms + adds + (5 if shape.is_gated else 3) * tokens * hidden + rotary)
        + at.num_bytes(masks)
        + at.calls(software.calls_per_layer / 2)
    )
    weight = (
        products[2] + accumulation_seconds(at, "layer") + at.calls(software.calls_per_layer / 2)
    )
    backward += back + cut_backward + again
    passes = 2 if at.recomputation == "full" else 1
    return BlockSeconds(forward, backward, weight, passes * ahead + back)


def _layer_products(at: Setting) -> tuple[float, float, float]:
    """Return the seconds of forward, of input gradients, and of weight gradients."""
    shape = at.shape
    tensor = at.tensor
    tokens = at.tokens
    queries = shape.width / tensor
    keys = max(shape.num_kv_heads / tensor, 1) * shape.head_dim
    hidden = shape.num_hidden / tensor
    gates = 2 if shape.is_gated else 1
    sizes = [
        (queries + 2 * keys, shape.width),
        (shape.width, queries),
        (gates * hidden, shape.width),
        (shape.width, hidden),
    ]
    if at.software.splits_backward:  # shardkit: one product for each matrix
        sizes[0:1] = [(queries, shape.width), (keys, shape.width), (keys, shape.width)]
        sizes[-2:-1] = [(hidden, shape.width)] * gates
    return (
        sum(at.linear(tokens, out, into) for out, into in sizes),
        sum(at.linear(tokens, into, out) for out, into in sizes),
        sum(at.linear(out, into, tokens) for out, into in sizes),
    )


def _casts(at: Setting) -> tuple[float, float]:
    """Return the seconds of casts before a layer's products: forward, backward.

    Forward casts the inputs of its matrices, backward the gradients of their outputs, and both the
    matrices, unless their owners have cast a part each. Inputs of a region are cast before they are
    gathered. Where a tensor rank has a part of an array, the ranks agree on its largest magnitude.
    """
    if not at.software.casts:
        return 0.0, 0.0
    shape = at.shape
    inside = at.tokens / at.tensor
    matrices = shape.multiplied_elements("layer", at.tensor)
    if at.software.gather_bytes is not None:
        matrices = 0
    gates = 2 if shape.is_gated else 1
    ahead = 2 * at.outside * shape.width + inside * (shape.width + shape.num_hidden)
    back = 2 * at.outside * shape.width
    back += inside * (shape.width + 2 * shape.kv_width + gates * shape.num_hidden)
    agree = 4 * collective_seconds(at.cluster, ALL_REDUCE, 4, RankGroup(at.tensor, 1))
    return at.cast(ahead + matrices) + agree, at.cast(back + matrices) + agree


def _attention(at: Setting) -> tuple[float, float]:
    """Return the seconds of scores, softmax, dropout and weighted values: forward, backward."""
    shape = at.shape
    length = at.shape.sequence_length
    dim = at.shape.head_dim
    heads = shape.heads / at.tensor * at.micro_batch / at.domain  # or a part of the queries of each
    if not at.software.keeps_scores:  # a fused kernel, which skips what the causal mask hides
        whole = at.cluster.device.attention_seconds(
            heads, length, dim, at.software.dtype, at.software.attention_kernel
        )
        forward, backward = [each * seen_part(shape) for each in whole]
        moved = at.elements(2 * at.tokens * (shape.width + shape.kv_width) / at.tensor)
        return max(forward, moved), max(backward, 2 * moved)
    scores = heads * length * length
    has_dropout = at.software.masks_dropout
    products = at.product(length, length, dim, batch=heads)
    products += at.product(length, dim, length, batch=heads)
    values = 2 * at.tokens * shape.width / at.tensor
    dropout = 2 * scores * has_dropout
    masks = at.num_bytes(scores * has_dropout)
    forward = products + at.elements(2 * scores + dropout + values) + masks
    backward = 2 * products + at.elements(3 * scores + dropout + values) + masks
    return forward, backward


def _from_other_parts(at: Setting, core: float, core_backward: float) -> tuple[float, float]:
    """Return the seconds that attention over parts of samples takes more: forward, backward.

    By heads, ranks wait for what they exchange; in a ring all but the first block travel while the
    one before is computed (parallel/domain/attention.py).
    """
    if at.domain == 1:
        return 0.0, 0.0
    return mean_of_layers(at.shape, lambda reach: _from_parts(at, core, core_backward, reach))


def _from_parts(at: Setting, core, core_backward, reach: int) -> tuple[float, float]:
    """Return the seconds of a layer that sees so many tokens."""
    of_sample = _elements_around(at.shape, at.tensor, at.domain, reach)
    ahead, back = [at.micro_batch * count for count in of_sample]
    group = RankGroup(at.domain, at.tensor)

    def travel(elements):
        whole = elements * at.domain / (at.domain - 1) * at.software.activation_bytes
        return collective_seconds(at.cluster, ALL_GATHER, whole, group)

    lengths = collective_seconds(at.cluster, ALL_GATHER, 8 * at.domain, group)
    both = travel(ahead), travel(back)
    if not at.shape.goes_by_heads(at.tensor, at.domain, reach):
        contention, blocks = at.cluster.device.contention, at.domain - 1
        both = [
            exposed_seconds(beside, each, contention, each / blocks, at.software.overlap)
            for beside, each in zip((core, core_backward), both)
        ]
    return lengths + both[0], both[1]


def elements_around(shape: ModelShape, tensor: int, domain: int) -> tuple[float, float]:
    """Return the elements that the busiest domain rank sends of a sample in an attention: forward,
    backward; the mean of all layers.
    """
    return mean_of_layers(shape, lambda reach: _elements_around(shape, tensor, domain, reach))


def _elements_around(
    shape: ModelShape, tensor: int, domain: int, reach: int
) -> tuple[float, float]:
    """Return the elements of a layer that sees so many tokens.

    By heads each rank sends all of its queries, keys, values and results but what is its own. In a
    ring a rank sends on the blocks of keys and values of all ranks before it, backward with their
    gradients, and halves of its tokens before and after. Under a window parts stay as they are, and
    blocks go no further than it reaches.
    """
    if not shape.goes_by_heads(tensor, domain, reach):
        if reach < shape.sequence_length:
            elements = 2 * shape.kv_width / tensor
            ahead, back = keys_around(shape.sequence_length, domain, reach)
            return ahead * elements, back * elements
        return max([_around_ring(shape, tensor, domain, rank) for rank in range(domain)], key=sum)
    own = -(-shape.sequence_length // domain)
    mine = own * (domain - 1) / domain / tensor  # tokens, times the part of heads that others have
    theirs = (shape.sequence_length - own) / domain / tensor
    inputs = shape.width + 2 * shape.kv_width
    return mine * inputs + theirs * shape.width, mine * shape.width + theirs * inputs


def _around_ring(shape: ModelShape, tensor: int, domain: int, rank: int) -> tuple[float, float]:
    """Return what one rank sends in a balanced ring (parallel/domain/ways.py).

    It changes the second half of its tokens for that of one other rank, and changes results back.
    Backward the gradient of each block passes it, its own too.
    """
    lengths = [stop - start for start, stop in even_runs(shape.sequence_length, domain)]
    pairs = [(mine + 1) // 2 + other // 2 for mine, other in zip(lengths, reversed(lengths))]
    travelling = [(lengths[0] + 1) // 2, *pairs[1:]]  # no other rank sees the last tokens
    all_around = sum(travelling)
    blocks = all_around - travelling[(rank + 1) % domain]
    is_middle = 2 * rank == domain - 1
    given, taken = [0 if is_middle else lengths[each] // 2 for each in (rank, -1 - rank)]
    inputs, keys = shape.width + 2 * shape.kv_width, 2 * shape.kv_width
    ahead = given * inputs + taken * shape.width + blocks * keys
    back = given * shape.width + taken * inputs + (blocks + all_around) * keys
    return ahead / tensor, back / tensor


def accumulation_seconds(at: Setting, block: str) -> float:
    """Return the seconds to add a micro-batch's gradient of the block to the sum."""
    return at.num_bytes(at.shape.block_elements(block, at.tensor) * at.software.accumulation_bytes)


def _regions(at: Setting, count: int) -> float:
    """Return the seconds to pass through this many regions, forward or backward.

    Each needs an all-reduce, or under sequence parallelism a reduce-scatter and an all-gather.
    """
    whole = at.tokens * at.shape.width * at.software.activation_bytes
    if not at.is_sequence_parallel:
        return count * at.between_tensor(ALL_REDUCE, whole)
    reduced = count * at.between_tensor(REDUCE_SCATTER, whole)
    return reduced + _gathered(at, count)


def _gathered(at: Setting, count: int) -> float:
    """Return the seconds to gather so many inputs of regions, or gradients of their outputs, under
    sequence parallelism: cast ones where products are of a smaller dtype.
    """
    item_bytes = 1 if at.software.casts else at.software.activation_bytes
    whole = at.tokens * at.shape.width * item_bytes
    return count * at.between_tensor(ALL_GATHER, whole)


def _in_the_open(at: Setting, travel: float, products: float) -> float:
    """Return the seconds that collectives of regions add to a layer's products.

    A program that overlaps them under sequence parallelism cuts both into as many pieces as there
    are tensor ranks, and the first piece has nothing to run beside (Wang et al., Overlap
    Communication with Dependent Computation via Decomposition, ASPLOS 2023).
    """
    if not (at.software.overlaps_tensor and at.is_sequence_parallel and travel):
        return travel
    first = travel / at.tensor
    contention, overlap = at.cluster.device.contention, at.software.overlap
    return exposed_seconds(products, travel, contention, first, overlap)


def _gathered_again(at: Setting, count: int) -> float:
    """Return the seconds of backward to gather the inputs of this many regions again, where only a
    slice was kept.
    """
    if not at.is_sequence_parallel or at.software.splits_backward:
        return 0.0
    return _gathered(at, count)


# ---- the ends ------------------------------------------------------------------------------------


def _embedding(at: Setting) -> BlockSeconds:
    """Return the seconds of the rows of a table, and of the sum over tensor ranks if it is cut.

    The weight gradient fills the table with zeros first.
    """
    moved = 4 * at.outside * at.shape.width
    table = at.shape.block_elements("embedding", at.tensor)
    return BlockSeconds(
        at.elements(moved) + at.calls(4) + _regions(at, 1),
        0.0,
        at.elements(moved + table) + accumulation_seconds(at, "embedding") + at.calls(4),
        _regions(at, 1),
    )


def _head(at: Setting) -> BlockSeconds:
    """Return the seconds of a norm, the logits, and the loss.

    The loss passes over float32 logits 6 times forward and 4 times backward, or twice if fused.
    """
    rows = at.tokens
    width = at.shape.width
    columns = at.shape.vocabulary / at.tensor
    logits = rows * columns
    gathered = 0.0
    if not at.software.cuts_logits:
        logits *= at.tensor
        gathered = at.between_tensor(ALL_GATHER, logits * at.software.activation_bytes)
    passes, passes_back = (2, 2) if at.software.splits_backward else (6, 4)
    norm = at.elements(2 * at.outside * width)
    forward = (
        at.product(rows, columns, width)
        + norm
        + at.num_bytes(4 * passes * logits)
        + at.calls(8)
        + gathered
    )
    backward = (
        at.product(rows, width, columns)
        + 1.5 * norm
        + at.num_bytes(4 * passes_back * logits)
        + at.calls(8)
    )
    weight = at.product(columns, width, rows) + accumulation_seconds(at, "head") + at.calls(4)
    back = _regions(at, 1)
    return BlockSeconds(forward, backward + back, weight, gathered + back)
