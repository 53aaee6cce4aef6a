"""The figures of `shardkit bench`: from the profiles of all ranks to what JSON holds.

profiles, products alone, the step without work --> parts of the step, kernels, products, speeds
"""

import os
import platform

from ..parallel.model.profile import StepProfile
from ..parallel.model.sharded_model import parts_of
from ..parallel.step.stopwatch import Product
from ..task.task import Task

PARTS = {
    "products": "matrix products",
    "kernels": "other kernels",
    "passes": "passes over arrays outside of kernels",
    "optimizer": "optimizer and clipping",
    "communication": "exposed communication",
    "idle": "idle, waiting for other ranks",
    "python": "Python and bookkeeping",
}


def figures_of(
    task: Task, model, ranks: list[StepProfile], alone: list[dict], fixed: list[dict]
) -> dict:
    """Return everything that is measured, as JSON holds it. Seconds are of one step."""
    settings = task.settings
    step_seconds = max(profile.seconds for profile in ranks)
    samples = settings.batch.sequences
    parts = [_split_rest(profile.parts, of_tiny) for profile, of_tiny in zip(ranks, fixed)]
    # Of all ranks together.
    speed = sum(
        profile.product_flops / seconds_alone_of(profile, of_rank)
        for profile, of_rank in zip(ranks, alone)
    )
    # Of the whole model, whatever this rank holds.
    flops = task.num_flops_per_sample(model.wrapped_model) * samples
    return {
        "strategy": parts_of(model).policy.name,
        "mesh": str(model.mesh.shape),
        "ranks": len(ranks),
        "parameter_count": model.parameter_count,
        "settings": settings.to_dict(),
        "step_seconds": step_seconds,
        "watched_step_seconds": max(profile.watched_seconds for profile in ranks),
        "unit": task.unit or task.sample,
        f"{task.unit or task.sample}_per_second": samples * task.units_per_sample / step_seconds,
        "model_flops_per_second": flops / step_seconds,
        "product_flops_per_second_alone": speed,
        "large_product_flops_per_second": sum(of_rank[None] for of_rank in alone),
        "model_flop_utilization": flops / step_seconds / speed,
        "parts": {part: sum(of_rank[part] for of_rank in parts) / len(parts) for part in PARTS},
        "parts_per_rank": parts,
        "kernels": _kernel_rows(ranks),
        "products": _product_rows(ranks[0], alone[0]),
        "products_alone_seconds": [
            seconds_alone_of(profile, of_rank) for profile, of_rank in zip(ranks, alone)
        ],
        "sent_bytes_per_rank": [profile.sent_bytes for profile in ranks],
        "sent_calls_per_rank": [profile.sent_calls for profile in ranks],
        "peak_bytes_per_rank": [profile.peak_bytes for profile in ranks],
        "bubble_fraction": parts_of(model).engine.bubble_fraction,
        **_places(settings, model),
    }


def _split_rest(parts: dict, of_tiny: dict) -> dict:
    """Return the parts as printed, with the same sum.

    What each of them costs without work is Python.
    """
    split = {"python": 0.0}
    for part, seconds in parts.items():
        fixed = 0.0 if part in ("communication", "idle") else min(of_tiny[part], seconds)
        split["passes" if part == "rest" else part] = seconds - fixed
        split["python"] += fixed
    return {part: split[part] for part in PARTS}


def seconds_alone_of(profile: StepProfile, alone: dict) -> float:
    """Return the seconds of all products of a step, each alone."""
    return sum(alone[product] * calls for product, (_, calls) in profile.products.items())


def _kernel_rows(ranks: list[StepProfile]) -> dict:
    """Return {name: mean seconds and calls per rank}, the longest first."""
    names = {name for profile in ranks for name in profile.kernels}
    rows = {
        name: [
            sum(profile.kernels.get(name, (0.0, 0))[i] for profile in ranks) / len(ranks)
            for i in range(2)
        ]
        for name in names
    }
    return {
        name: {"seconds": seconds, "calls": calls}
        for name, (seconds, calls) in sorted(rows.items(), key=lambda item: -item[1][0])
    }


def _product_rows(profile: StepProfile, alone: dict[Product, float]) -> list[dict]:
    """Return the products of one rank, the longest first."""
    rows = [
        {
            "product": str(product),
            "calls": calls,
            "seconds": seconds,
            "alone_seconds": alone[product] * calls,
            "flops": product.flops * calls,
        }
        for product, (seconds, calls) in profile.products.items()
    ]
    return sorted(rows, key=lambda row: -row["seconds"])


def _places(settings, model) -> dict:
    """Return the threads and cores of the fullest node. Collective."""
    hosts = model.mesh.world.all_gather_object((platform.node(), sorted(os.sched_getaffinity(0))))
    names = [name for name, _ in hosts]
    fullest = max(names, key=names.count)
    cores = {core for name, allowed in hosts if name == fullest for core in allowed}
    return {
        "threads_per_rank": settings.run.threads,
        "ranks_per_node": names.count(fullest),
        "cores_per_node": len(cores),
    }
