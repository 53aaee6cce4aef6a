"""The tensor plans of our models: which layers are cut, and how.

A plan is {pattern of dotted module names: style}; styles.py has the styles, plan.py applies plans.
"""

from ...errors import ShardingError
from ...nn.models.gpt import GPT
from ...nn.models.mlp import MLP
from ...nn.models.vit import ViT
from ...nn.module import Module
from .styles import STYLES

ATTENTION = {"query": "column", "key": "column", "value": "column", "output": "row"}
FEED_FORWARD = {"up": "column", "down": "row"}


def default_plan(model: Module) -> dict[str, str]:
    """Return the plan for one of our models: GPT and ViT as in Megatron-LM, MLP column, row, ...

    The last layer of an MLP with an odd number of layers is not cut: every rank computes it on the
    same values. So are the embedding and the head of a ViT.
    Errors: ShardingError for a model of another class.
    """
    for kind, plan in PLANS.items():
        if isinstance(model, kind):
            return plan(model)
    raise ShardingError(
        f"there is no default tensor plan for a {type(model).__name__}; pass one, {{name pattern: "
        f"style}} with styles {', '.join(STYLES)}"
    )


def _of_gpt(model: GPT) -> dict[str, str]:
    attention = dict(ATTENTION)
    if model.settings.qk_norm is not None:
        style = {"head": "head_norm", "projection": "column_norm"}[model.settings.qk_norm]
        attention |= {"query_norm": style, "key_norm": style}
    gate = {"gate": "column"} if model.settings.choices.is_gated else {}
    return {
        "embedding.tokens": "vocabulary",
        **_of_blocks("blocks.*", attention, gate | FEED_FORWARD),
        "head.output": "vocabulary",
    }


def _of_vit(model: ViT) -> dict[str, str]:
    return _of_blocks("layers.*", ATTENTION, FEED_FORWARD)


def _of_blocks(block: str, attention: dict[str, str], feed_forward: dict[str, str]):
    """Return the plan of transformer blocks: x enters each branch once for all that read it."""
    return {
        f"{block}.attention": "region",
        f"{block}.mlp": "region",
        **{f"{block}.attention.{name}": style for name, style in attention.items()},
        **{f"{block}.mlp.{name}": style for name, style in feed_forward.items()},
    }


def _of_mlp(model: MLP) -> dict[str, str]:
    num_cut = len(model.layers) // 2 * 2
    return {f"layers.{index}": ("column", "row")[index % 2] for index in range(num_cut)}


PLANS = {GPT: _of_gpt, MLP: _of_mlp, ViT: _of_vit}
