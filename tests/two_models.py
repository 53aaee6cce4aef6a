"""Two hybrid models of different mesh sizes in one job, on any backend: trained in turn, and each
alone.
"""

from builders import sha256
from hybrids import gpt, hybrid, step_once

from shardkit.testing.parallel import gradient_norm_of

STEPS = 2
LLAMA = {"style": "llama", "heads": 12}
PAIRS = {  # number of ranks: pairs of what make() takes
    4: [
        (
            {"mesh": (2, 1, 2), "schedule": "zb-v", "changes": {"layers": 2}},
            {"mesh": (1, 2, 2), "policy": "zero1", "schedule": "gpipe", "changes": LLAMA},
        ),
        (
            {"mesh": (2, 2, 1), "policy": "zero2", "changes": {"tied": True}},
            {
                "mesh": (1, 1, 4),
                "policy": "ddp",
                "changes": {**LLAMA, "kv_heads": 2},
                "sequence_parallel": True,
            },
        ),
    ],
    8: [
        (
            {"mesh": (2, 2, 2), "schedule": "interleaved", "changes": {"layers": 2}},
            {"mesh": (4, 2, 1), "policy": "ddp", "changes": {"tied": True, "layers": 2}},
        ),
        (
            {"mesh": (1, 4, 2), "policy": "zero2", "schedule": "gpipe"},
            {"mesh": (2, 1, 4), "schedule": "zb-h1", "changes": {"dropout": 0.1}},
        ),
    ],
}


def make(backend, mesh, changes={}, **settings):
    """Return a float32 model; changes to the sizes of the GPT, settings of hybrid()."""
    return hybrid(backend, mesh, model=gpt(**{"dtype": "float32", **changes}), **settings)


def trained_alone(backend, description):
    """Return (losses of STEPS + 1 steps, hash of parameters, last gradient norm). Collective."""
    model = make(backend, **description)
    result = _finish(model, [step_once(model, step) for step in range(STEPS)])
    model.close()
    return result


def trained_in_turn(backend, first, second):
    """Return the results of both models, which exist from the start.

    The first is closed before the second takes its last step. Collective.
    """
    models, losses = [make(backend, **first), make(backend, **second)], ([], [])
    for step in range(STEPS):
        for model, curve in zip(models, losses):
            curve.append(step_once(model, step))
    results = []
    for model, curve in zip(models, losses):
        results.append(_finish(model, curve))
        model.close()
    return results


def _finish(model, losses):
    losses = [*losses, step_once(model, STEPS)]
    return losses, sha256(model.gather_full_parameters()), gradient_norm_of(model)
