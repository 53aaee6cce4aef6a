"""Ways of attention of a sequence that is cut over ranks, and which of them is taken.

    heads    [own tokens, all heads] --transposition--> [all tokens, own heads], attention of each
             head as ever, and back
    ring     as of attention.py, where each span sees as many keys as any other
    pairs    the same of spans early and late, under a causal mask: halves of even spans change
             hands before it and after

Source of the first: DeepSpeed Ulysses (arXiv 2309.14509).
"""

from typing import Any

from ...comm.backend import CommunicationBackend
from ...nn.autograd import Tensor
from .attention import attended, checked, itinerary_of, ring_attention
from .rows import exchange_rows
from .spans import Spans, Table, even_spans, length_of, paired_spans
from .transposition import exchange_cut

HEADS, TOKENS = 1, 2  # dims of queries, keys and values


def cut_attention(
    q: Tensor, k: Tensor, v: Tensor, group: CommunicationBackend, *tables: Table, **form: Any
) -> Tensor:
    """Return attention in the way that is quicker: by heads where ranks divide them, or the ring.

    Collective over `group`. Arguments as of ring_attention.
    Measured by benchmarks/domain.py: docs/parallel/domain.md. Where the busiest rank would compute
    a head more than others, the ring is quicker, whose ranks compute the same.
    By heads a rank sends (2 H + 2 KV) S D (n-1) / n^2 elements, by the ring 2 KV S D (n-1) / n, and
    (H + KV) S D / n for pairs: that is 1% of the time within a node.
    """
    attend = attention_by_heads if takes_heads(k.shape[HEADS], group.world_size) else balanced_ring
    return attend(q, k, v, group, *tables, **form)


def takes_heads(num_key_heads: int, num_ranks: int) -> bool:
    """Return True if attention goes by heads: each rank has as many key heads as any other."""
    return num_key_heads % num_ranks == 0


def attention_by_heads(
    q: Tensor, k: Tensor, v: Tensor, group: CommunicationBackend, *tables: Table, **form: Any
) -> Tensor:
    """Return what ring_attention does, each head computed whole by one rank, with its bits.

    Collective over `group` in forward and backward. Arguments as of ring_attention. Ranks may have
    one key head more than others, or none.
    """
    table, key_table = (*tables, *tables)[:2]
    sight, scale = checked(q, k, v, group, table, key_table, **form)
    of_keys = even_spans(k.shape[HEADS], group.world_size)
    of_queries = _times(of_keys, q.shape[HEADS] // k.shape[HEADS])
    q = exchange_cut(q, group, TOKENS, HEADS, table, of_queries)
    k = exchange_cut(k, group, TOKENS, HEADS, key_table, of_keys)
    v = exchange_cut(v, group, TOKENS, HEADS, key_table, of_keys)
    whole = [even_spans(length_of(each), 1) for each in (table, key_table)]
    y = attended(q, k, v, group, itinerary_of(*whole, sight, 0), scale)
    return exchange_cut(y, group, HEADS, TOKENS, of_queries, table)


def balanced_ring(
    q: Tensor, k: Tensor, v: Tensor, group: CommunicationBackend, *tables: Table, **form: Any
) -> Tensor:
    """Return what ring_attention does, in pairs of spans where even ones would not be as much work.

    Collective over `group`, also to exchange halves of spans before it and after, with one other
    rank. Arguments as of ring_attention. Under a causal mask the last of even spans sees all keys
    and the first few; each pair sees half of the keys in each block. A window sees as many keys
    from each span.
    """
    table, key_table = (*tables, *tables)[:2]
    is_triangle = form.get("causal", True) and form.get("window") is None and table == key_table
    if not is_triangle or table != even_spans(length_of(table), group.world_size):
        return ring_attention(q, k, v, group, table, key_table, **form)
    checked(q, k, v, group, table, key_table, **form)
    pairs = paired_spans(length_of(table), group.world_size)
    q = exchange_rows(q, group, TOKENS, table, pairs)
    k = exchange_rows(k, group, TOKENS, table, pairs)
    v = exchange_rows(v, group, TOKENS, table, pairs)
    y = ring_attention(q, k, v, group, pairs, **form)
    return exchange_rows(y, group, TOKENS, pairs, table)


def _times(table: Table, count: int) -> Table:
    """Return the spans of as many elements for each one."""

    def times(spans: Spans) -> Spans:
        return tuple([(count * start, count * stop) for start, stop in spans])

    return tuple(map(times, table))
