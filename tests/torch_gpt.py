"""The GPT of shardkit.nn written in PyTorch, as functions of the same weights by the same names.

weights = torch_weights(model)                       # {"blocks.0.mlp.up.weight": torch tensor,
                                                     ...}, copies
logits = torch_gpt(weights, ids, model.settings)
"""

from torch_or_skip import torch


def torch_norm(w, name, x, eps=None):
    if f"{name}.bias" in w:
        return torch.nn.functional.layer_norm(
            x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps or 1e-5
        )
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], eps or 1e-6)


def torch_linear(w, name, x):
    return torch.nn.functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def torch_rotary(x, base=10000.0):
    """Turn pairs (x[i], x[i + D/2]) of x [batch, heads, S, D] as complex numbers."""
    half = x.shape[-1] // 2
    rates = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[2])[:, None] * rates
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


def torch_attention(w, name, x, heads, is_rotary, base=10000.0):
    batch, sequence, width = x.shape
    q, k, v = [
        torch_linear(w, f"{name}.{part}", x)
        .reshape(batch, sequence, -1, width // heads)
        .transpose(1, 2)
        for part in ("query", "key", "value")
    ]
    if is_rotary:
        q, k = torch_rotary(q, base), torch_rotary(k, base)
    k, v = [each.repeat_interleave(heads // each.shape[1], dim=1) for each in (k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch_linear(w, f"{name}.output", y.transpose(1, 2).reshape(batch, sequence, width))


def torch_mlp(w, name, x):
    up = torch_linear(w, f"{name}.up", x)
    is_gated = f"{name}.gate.weight" in w
    if is_gated:
        hidden = torch.nn.functional.silu(torch_linear(w, f"{name}.gate", x)) * up
    else:
        hidden = torch.nn.functional.gelu(up, approximate="tanh")
    return torch_linear(w, f"{name}.down", hidden)


def torch_block(w, x, heads, is_rotary, prefix="", eps=None, base=10000.0):
    x = x + torch_attention(
        w,
        f"{prefix}attention",
        torch_norm(w, f"{prefix}attention_norm", x, eps),
        heads,
        is_rotary,
        base,
    )
    return x + torch_mlp(w, f"{prefix}mlp", torch_norm(w, f"{prefix}mlp_norm", x, eps))


def torch_gpt(w, ids, settings):
    is_rotary = settings.style == "llama"
    x = w["embedding.tokens.weight"][torch.tensor(ids)]
    if not is_rotary:
        x = x + w["embedding.positions.weight"][: ids.shape[1]]
    for layer in range(settings.layers):
        x = torch_block(
            w,
            x,
            settings.heads,
            is_rotary,
            f"blocks.{layer}.",
            settings.norm_eps,
            settings.rotary_base,
        )
    output = w["embedding.tokens.weight" if settings.tied else "head.output.weight"]
    return torch.nn.functional.linear(torch_norm(w, "head.norm", x, settings.norm_eps), output)


def torch_weights(module):
    return {
        name: torch.tensor(value, requires_grad=True) for name, value in module.state_dict().items()
    }
