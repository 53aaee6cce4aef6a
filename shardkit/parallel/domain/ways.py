"""Ways of attention of a sequence that is cut over ranks, and which of them is taken.

    heads    [own tokens, all heads] --transposition--> [all tokens, own heads], attention of each
             head as ever, and back
    ring     as of attention.py, where each span sees as many keys as any other
    pairs    the same of spans early and late, under a causal mask: halves of even spans change
             hands before it and after

Source of the first: DeepSpeed Ulysses (arXiv 2309.14509).
"""

from functools import lru_cache
from typing import Any

from ...comm.backend import CommunicationBackend
from ...nn.autograd import Tensor
from .attention import attended, checked, ring_attention
from .itinerary import Sight, itineraries_of, keys_sent, most_scores
from .rows import exchange_rows
from .spans import Spans, Table, even_spans, length_of, paired_spans
from .transposition import exchange_cut

HEADS, TOKENS = 1, 2  # dims of queries, keys and values
WORTH = 9 / 8  # scores of the busiest rank that pairs must save, for what they send more


def cut_attention(
    q: Tensor, k: Tensor, v: Tensor, group: CommunicationBackend, *tables: Table, **form: Any
) -> Tensor:
    """Return attention in the way that is quicker: by heads where ranks divide them, or the ring.

    Collective over `group`. Arguments as of ring_attention.
    Measured by benchmarks/domain.py: docs/parallel/domain.md. Where the busiest rank would compute
    a head more than others, the ring is quicker, whose ranks compute the same.
    By heads a rank sends (2 H + 2 KV) S D (n-1) / n^2 elements, by the ring 2 KV S D (n-1) / n, and
    (H + KV) S D / n for pairs: that is 1% of the time within a node. Under a window a ring sends
    blocks no further than it reaches: it is taken where that is less than by heads.
    """
    table, key_table = (*tables, *tables)[:2]
    attend = attention_by_heads if takes_heads(k.shape[HEADS], group.world_size) else balanced_ring
    if form.get("window") is not None and attend is attention_by_heads:
        sight, _ = checked(q, k, v, group, table, key_table, **form)
        if _sends_less(q.shape[HEADS], k.shape[HEADS], table, key_table, sight):
            attend = balanced_ring
    return attend(q, k, v, group, table, key_table, **form)


def _sends_less(num_heads, num_key_heads, table, key_table, sight) -> bool:
    """Return True if a rank sends less in a ring than by heads, forward and backward."""
    num_ranks = len(table)
    around = 2 * num_key_heads * keys_sent(table, key_table, sight)
    of_heads = 2 * num_heads * length_of(table) + 2 * num_key_heads * length_of(key_table)
    return around * num_ranks**2 < 2 * of_heads * (num_ranks - 1)


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
    y = attended(q, k, v, group, itineraries_of(*whole, sight, 0), scale)
    return exchange_cut(y, group, HEADS, TOKENS, of_queries, table)


def balanced_ring(
    q: Tensor, k: Tensor, v: Tensor, group: CommunicationBackend, *tables: Table, **form: Any
) -> Tensor:
    """Return what ring_attention does, in pairs of spans where even ones would not be as much work.

    Collective over `group`, also to exchange halves of spans before it and after, with one other
    rank. Arguments as of ring_attention. Under a causal mask the last of even spans sees all keys
    and the first few; each pair sees half of the keys in each block. A short window sees as many
    keys from each span.
    """
    table, key_table = (*tables, *tables)[:2]
    sight, _ = checked(q, k, v, group, table, key_table, **form)
    pairs = paired_spans(length_of(table), group.world_size)
    is_even = table == key_table == even_spans(length_of(table), group.world_size)
    if not is_even or not _pays(table, pairs, sight):
        return ring_attention(q, k, v, group, table, key_table, **form)
    q = exchange_rows(q, group, TOKENS, table, pairs)
    k = exchange_rows(k, group, TOKENS, table, pairs)
    v = exchange_rows(v, group, TOKENS, table, pairs)
    y = ring_attention(q, k, v, group, pairs, **form)
    return exchange_rows(y, group, TOKENS, pairs, table)


@lru_cache(maxsize=256)
def _pays(table: Table, pairs: Table, sight: Sight) -> bool:
    """Return True if pairs are enough less work for the busiest rank."""
    even, paired = [most_scores(each, each, sight) for each in (table, pairs)]
    return even > WORTH * paired


def _times(table: Table, count: int) -> Table:
    """Return the spans of as many elements for each one."""

    def times(spans: Spans) -> Spans:
        return tuple([(count * start, count * stop) for start, stop in spans])

    return tuple(map(times, table))
