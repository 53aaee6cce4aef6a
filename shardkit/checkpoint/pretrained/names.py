"""Map the parameters of GPT to the tensors of transformers.

    here                               GPT2LMHeadModel           LlamaForCausalLM
    embedding.tokens.weight            transformer.wte.weight    model.embed_tokens.weight
    embedding.positions.weight         transformer.wpe.weight    -
    head.norm.weight                   transformer.ln_f.weight   model.norm.weight
    head.output.weight (if not tied)   lm_head.weight            lm_head.weight

    blocks.0.                          transformer.h.0.          model.layers.0.
      attention_norm.weight              ln_1.weight               input_layernorm.weight
      attention.{query,key,value}        attn.c_attn *             self_attn.{q,k,v}_proj
      attention.output                   attn.c_proj *             self_attn.o_proj
      mlp_norm.weight                    ln_2.weight               post_attention_layernorm.weight
      mlp.{gate,up,down}                 -, mlp.c_fc *, c_proj *   mlp.{gate,up,down}_proj

    * transposed; c_attn holds the three one after the other

Both sides turn the pairs (x[i], x[i + D/2]) of queries and keys, so rotary models need no
permutation. families.py has the names of every family.
"""

import re
from dataclasses import dataclass

from ...layout.box import Box
from ...nn.models.gpt import GPT
from .families import Family

# constants that older files repeat
_BUFFERS = re.compile(r".*\.(attn\.(bias|masked_bias)|rotary_emb\.inv_freq)")
# in GPT-2: parts of c_attn
_FUSED = {"attention.query": 0, "attention.key": 1, "attention.value": 2}


@dataclass(frozen=True)
class Link:
    """One of our parameters and where it is in theirs."""

    ours: str
    theirs: str
    is_transposed: bool = False
    part: int = 0  # of num_parts equal ones along the last dim of theirs
    num_parts: int = 1

    def shape_in_theirs(self, shape) -> tuple[int, ...]:
        """Return the shape of their whole tensor, if ours has this shape."""
        shape = tuple(reversed(shape)) if self.is_transposed else tuple(shape)
        return (*shape[:-1], shape[-1] * self.num_parts)

    def box_in_theirs(self, box: Box, shape) -> Box:
        """Return where a box of ours, whose whole shape is this, is in their tensor."""
        offset, size = box.offset, box.shape
        if self.is_transposed:
            offset, size = offset[::-1], size[::-1]
        first = self.part * (self.shape_in_theirs(shape)[-1] // self.num_parts)
        return Box((*offset[:-1], offset[-1] + first), size)


def links(model: GPT, family: Family, names=None) -> list[Link]:
    """Return where parameters of the model are, in canonical order.

    names   of parameters; None: all
    """
    return [_link(name, family) for name in names or model.named_parameters()]


def _link(ours: str, family: Family) -> Link:
    names = family.names
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", ours)
    if not block:
        module, _, kind = ours.rpartition(".")
        return Link(ours, f"{names[module]}.{kind}")
    index, module, kind = block.groups()
    theirs = f"{names['blocks']}.{index}.{names[module]}.{kind}"
    if family.style != "gpt2":
        return Link(ours, theirs)
    # GPT-2 keeps [in, out], as 1-D convolutions do
    is_transposed = kind == "weight" and not module.endswith("norm")
    return Link(ours, theirs, is_transposed, _FUSED.get(module, 0), 3 if module in _FUSED else 1)


def found_names(tensors, family: Family) -> dict[str, str]:
    """Return {full name: name in the file}, without constants.

    Files of a model without a head, such as a bare LlamaModel, leave out the first part of names.
    """
    prefix = family.prefix
    is_bare = not any(name.startswith(prefix) for name in tensors)
    names = [name for name in tensors if not _BUFFERS.fullmatch(name)]
    return {
        prefix + name if is_bare and not name.startswith("lm_head.") else name: name
        for name in names
    }
