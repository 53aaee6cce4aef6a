"""The GPT of shardkit.nn as a PyTorch user writes it, with the same parameters under the same
names.

    twin = GPT(sizes, attention="sdpa")
    twin.load_state_dict(weights)                # {"blocks.0.mlp.up.weight": tensor, ...} from
                                                 shardkit's state_dict()
    loss = mean_loss(twin(x), y)

attention: "eager" writes the softmax out, "sdpa" calls scaled_dot_product_attention. Heads and
hidden units are inferred from what the projections return, so that DTensor can cut them.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from contestants import Sizes
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, *, bias, rotary, sequence, kind):
        super().__init__()
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)
        self.head_dim = width // heads
        self.kind = kind
        self.rotary = rotary
        if kind == "eager":
            later = torch.ones(sequence, sequence, dtype=torch.bool).triu(1)
            self.register_buffer("later", later, persistent=False)
        if rotary:
            cos, sin = rotary_tables(sequence, self.head_dim)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        batch, sequence, _ = x.shape
        q, k, v = [
            projection(x).view(batch, sequence, -1, self.head_dim).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        ]  # [batch, heads, S, head_dim]
        if self.rotary:
            q, k = [turn(each, self.cos[:sequence], self.sin[:sequence]) for each in (q, k)]
        if self.kind == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / sqrt(self.head_dim)
            scores = scores.masked_fill(self.later[:sequence, :sequence], float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        return self.output(y.transpose(1, 2).reshape(batch, sequence, -1))


def rotary_tables(sequence, head_dim):
    """Return cos, sin [sequence, head_dim / 2]."""
    rates = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(sequence, dtype=torch.float64)[:, None] * rates
    return angles.cos().float(), angles.sin().float()


def turn(x, cos, sin):
    """Turn each pair (x[i], x[i + head_dim / 2]) by its angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, width, *, bias):
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=bias)
        self.down = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class GatedFeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        hidden = 8 * max(round(width / 3), 1)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, sizes, attention):
        super().__init__()
        is_llama = sizes.style == "llama"
        self.attention_norm = norm(sizes)
        self.attention = Attention(
            sizes.width,
            sizes.heads,
            bias=not is_llama,
            rotary=is_llama,
            sequence=sizes.sequence,
            kind=attention,
        )
        self.mlp_norm = norm(sizes)
        self.mlp = (
            GatedFeedForward(sizes.width) if is_llama else FeedForward(sizes.width, bias=True)
        )

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def norm(sizes):
    return (
        nn.RMSNorm(sizes.width, eps=1e-6) if sizes.style == "llama" else nn.LayerNorm(sizes.width)
    )


class TokenEmbedding(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = (
            None if sizes.style == "llama" else nn.Embedding(sizes.sequence, sizes.width)
        )

    def forward(self, ids):
        x = self.tokens(ids)
        return (
            x
            if self.positions is None
            else x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        )


class Head(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.norm = norm(sizes)
        self.output = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, x):
        return self.output(self.norm(x))


class GPT(nn.Module):
    """ids [batch, S] -> logits [batch, S, vocabulary].

    blocks       numbers of the transformer blocks that it has; None: all
    first, last  it begins with the embedding, ends with the head: a stage of a pipeline may lack
                 them
    """

    def __init__(
        self, sizes: Sizes, attention: str = "eager", *, blocks=None, first=True, last=True
    ):
        super().__init__()
        self.embedding = TokenEmbedding(sizes) if first else None
        numbers = range(sizes.layers) if blocks is None else blocks
        self.blocks = nn.ModuleDict({str(number): Block(sizes, attention) for number in numbers})
        self.head = Head(sizes) if last else None

    def parts(self):
        """Return what FSDP shards each by itself, beside the whole."""
        return list(self.blocks.values())

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


def mean_loss(logits, y):
    """Return the mean cross-entropy per token, in nats."""
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())
