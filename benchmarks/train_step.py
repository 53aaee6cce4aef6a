"""The training step: shardkit against PyTorch, the same weights, the same batches, the same losses
to 1e-4 (in bfloat16 to 1e-3).

    python benchmarks/train_step.py [--models M,S] [--groups alone,halves,ddp,fsdp,tensor,pipeline]
    [--budget 900]

One thread per rank, ranks bound to a core each where there are enough. A step is everything: batch,
forward, backward, clipping to norm 1, AdamW, and the loss as a number. Two ranks share the global
batch (ddp, fsdp) or compute the same batch together (tensor, pipeline). PyTorch runs with
scaled_dot_product_attention and fused AdamW on two ranks, and in several forms on one. It
multiplies by the MKL and oneDNN in its wheels; shardkit by the library that it measures to be the
fastest here, of those that are installed, and by NumPy's.
"""

import argparse
import os
import shutil
import sys
import time
from functools import cache
from statistics import median

from contestants import Sizes, Spec, shardkit_gpt
from problems import Problem
from race import Race
from report import Table, machine, machine_text, save

from shardkit.array.blas.processor import multiplies_bfloat16
from shardkit.train.choice import measured_seconds, products_of_layers


def blas_of(model, num_rows: int) -> str:
    """Return the library that multiplies the matrices of its layers fastest here, for so many rows
    of input, as parallel.blas = "auto" chooses it.
    """
    seconds = measured_seconds(products_of_layers(model, num_rows, "float32"))
    return min(seconds, key=seconds.__getitem__)


def by_numpy(spec: Spec) -> list[Spec]:
    """Return the contestants with NumPy's products; none if the others have them already."""
    return [spec] if our_products()["blas"] != "numpy" else []


MODELS = {
    "M": Sizes(
        "M",
        vocabulary=8192,
        width=512,
        heads=8,
        layers=6,
        sequence=256,
        batch=8,
        first_stage_blocks=4,
        blocks_of_v=(1, 2, 2, 1),
    ),
    "S": Sizes(
        "S",
        vocabulary=256,
        width=256,
        heads=4,
        layers=4,
        sequence=128,
        batch=8,
        first_stage_blocks=2,
        blocks_of_v=(1, 1, 1, 1),
    ),
}
STEPS_PER_TURN = {"M": 1, "S": 5}
TURNS_AT_LEAST = 3
TURNS_AT_MOST = 15
TOLERANCE = 1e-4  # relative, of losses
ROUGH = 1e-3  # of half floats, and after a step of models that enlarge what is rounded
BEST = {"attention": "sdpa", "fused": True}
TITLES = {
    "alone": "1 rank",
    "halves": "1 rank, computed in bfloat16 from float32 masters",
    "ddp": "2 ranks, data parallel",
    "fsdp": "2 ranks, fully sharded",
    "tensor": "2 ranks, tensor parallel",
    "pipeline": "2 ranks, pipeline, {micro_batches} micro-batches",
}
WEIGHTS = {
    ("M", "alone"): 10,
    ("M", "halves"): 4,
    ("M", "ddp"): 5,
    ("M", "fsdp"): 4,
    ("M", "tensor"): 4,
    ("M", "pipeline"): 3,
    ("S", "alone"): 4,
}  # parts of the budget; 1 for the others
COLUMNS = [
    "contestant",
    "ms per step",
    "tokens/s",
    "GFLOP/s",
    "step time / first",
    "processor ms, all ranks",
    "peak MiB per rank",
    "loss difference",
]


@cache
def our_products() -> dict:
    """Return what the library of our products adds to a Spec."""
    sizes = MODELS["M"]
    return {"blas": blas_of(shardkit_gpt(sizes), sizes.tokens // sizes.micro_batches)}


@cache
def groups() -> dict[str, list[Spec]]:
    """Return {group: contestants}, of which the first is compared with the others."""
    alone = [
        Spec("shardkit", "shardkit", **our_products()),
        *by_numpy(Spec("shardkit, NumPy's BLAS", "shardkit")),
        Spec("torch eager", "torch"),
        Spec("torch eager, sdpa", "torch", attention="sdpa"),
        Spec("torch eager, sdpa, fused AdamW", "torch", **BEST),
        Spec("torch.compile", "torch", compiled=True),
        Spec("torch.compile, sdpa, fused AdamW", "torch", compiled=True, **BEST),
    ]
    return {
        "alone": alone,
        "halves": [
            Spec("shardkit, bfloat16", "shardkit", compute="bfloat16", **our_products()),
            Spec("shardkit, float32", "shardkit", **our_products()),
            Spec(
                "torch eager, bfloat16 autocast, sdpa, fused AdamW",
                "torch",
                compute="bfloat16",
                **BEST,
            ),
            Spec(
                "torch.compile, bfloat16 autocast, sdpa, fused AdamW",
                "torch",
                compute="bfloat16",
                compiled=True,
                **BEST,
            ),
        ],
        "ddp": [
            Spec("shardkit DDP", "shardkit", 2, "ddp", **our_products()),
            Spec("shardkit, 1 rank", "shardkit", **our_products()),
            *by_numpy(Spec("shardkit DDP, NumPy's BLAS", "shardkit", 2, "ddp")),
            Spec("torch DDP", "torch", 2, "ddp", **BEST),
            Spec("torch DDP, default AdamW", "torch", 2, "ddp", attention="sdpa"),
        ],
        "fsdp": [
            Spec("shardkit FSDP", "shardkit", 2, "fsdp", **our_products()),
            Spec("torch FSDP2", "torch", 2, "fsdp", **BEST),
            Spec("torch FSDP2, default AdamW", "torch", 2, "fsdp", attention="sdpa"),
        ],
        "tensor": [
            Spec("shardkit tensor", "shardkit", 2, "tensor", **our_products()),
            Spec("torch DTensor", "torch", 2, "tensor", **BEST),
        ],
        "pipeline": [
            Spec("shardkit, 1F1B", "shardkit", 2, "pipeline", **our_products()),
            Spec("shardkit, ZB-H1", "shardkit", 2, "pipeline", "zb-h1", **our_products()),
            Spec("shardkit, ZB-V", "shardkit", 2, "pipeline", "zb-v", **our_products()),
            Spec("torch, 1F1B", "torch", 2, "pipeline", **BEST),
            Spec("torch, ZB-V", "torch", 2, "pipeline", "zb-v", **BEST),
        ],
    }


def run_group(
    sizes, group: str, everyone: list[Spec], seconds: float, steps: int
) -> tuple[Table, dict, list[str]]:
    """Race one group; return its table, its raw numbers, and what went wrong, in words.

    sizes   Sizes or a Problem
    """
    print(f"{sizes.name} {group}", flush=True)
    began = time.monotonic()
    specs = [spec for spec in everyone if not why_not(spec)]
    with Race(sizes) as race:
        race.enter(*specs)
        left = seconds - (time.monotonic() - began)
        race.run_for(
            left,
            steps=steps,
            turns_at_least=TURNS_AT_LEAST,
            turns_at_most=TURNS_AT_MOST,
        )
        rows = [row(race, spec, specs[0].name) for spec in specs]
        raw = {name: {"turns": c.turns, "memory": c.memory} for name, c in race.contestants.items()}
        wrong = [
            f"{sizes.name} {group}: {name} failed: {reason}" for name, reason in race.failed.items()
        ]
        is_rough = group == "halves" or isinstance(sizes, Problem)
        tolerance = ROUGH if is_rough else TOLERANCE
        wrong += [
            f"{sizes.name} {group}: losses of {cells[0]} differ by {cells[-1]:.1e}, "
            f"more than {tolerance:g}"
            for cells in rows
            if cells[-1] is not None and not cells[-1] <= tolerance
        ]
    micro_batches = getattr(sizes, "micro_batches", 1)
    title = f"{sizes.name}, {TITLES[group].format(micro_batches=micro_batches)}"
    note = efficiency(race) if group == "ddp" and "shardkit, 1 rank" in race.contestants else ""
    if specs != everyone:
        note = "Left out: " + "; ".join(sorted({why_not(spec) for spec in everyone} - {""}))
    return Table(title, COLUMNS, rows, note), {**raw, "failed": race.failed}, wrong


def why_not(spec: Spec) -> str:
    """Return why a contestant cannot run here; "" if it can."""
    compilers = os.environ.get("CXX", "g++"), "c++", "clang++"
    if spec.library == "shardkit":
        return ""
    if spec.compute == "bfloat16" and not multiplies_bfloat16():
        return (
            "PyTorch in bfloat16, of which a step takes seconds on a CPU that does not multiply it"
        )
    if spec.compiled and not any(map(shutil.which, compilers)):
        return "torch.compile, which needs a C++ compiler, and there is none"
    return ""


def row(race: Race, spec: Spec, first: str) -> list:
    """Return a contestant's line; a value that was not measured is None."""
    contestant = race.contestants[spec.name]
    seconds = race.seconds(spec.name)
    if seconds is None:
        return [spec.name, f"failed: {race.failed[spec.name][:60]}", *[None] * (len(COLUMNS) - 2)]
    tokens_per_second = race.sizes.tokens / seconds
    return [
        spec.name,
        seconds * 1e3,
        tokens_per_second,
        race.flops_per_token and tokens_per_second * race.flops_per_token / 1e9,
        ratio(race, spec.name, first),
        race.processor_seconds(spec.name) * 1e3,
        max(of_rank["peak"] for of_rank in contestant.memory) / 2**20,
        race.loss_difference(spec.name, first),
    ]


def ratio(race: Race, name: str, first: str) -> float | None:
    """Return the median over turns of this contestant's step time by that of the first."""
    pairs = race.paired(name, first)
    return median(theirs / ours for theirs, ours in pairs) if pairs else None


def efficiency(race: Race) -> str:
    one_over_two = ratio(race, "shardkit, 1 rank", "shardkit DDP")
    return (
        ""
        if one_over_two is None
        else f"Efficiency of shardkit DDP: {one_over_two / 2:.3f} of twice one rank."
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="M,S")
    parser.add_argument("--groups", default=",".join(TITLES))
    parser.add_argument(
        "--budget", type=float, default=900, help="seconds for everything; default: %(default)s"
    )
    parser.add_argument("--style", default="gpt2", choices=("gpt2", "llama"))
    asked = parser.parse_args()
    races = [
        (model, group) for model in asked.models.split(",") for group in asked.groups.split(",")
    ]
    about = machine()
    deadline = time.monotonic() + asked.budget
    tables = []
    measured = {}
    wrong = []
    for at, (model, group) in enumerate(races):
        weights = [WEIGHTS.get(race, 1) for race in races[at:]]
        seconds = (deadline - time.monotonic()) * weights[0] / sum(weights)
        if seconds <= 0:
            wrong.append(f"{model} {group}: not run, the budget of {asked.budget:g} s is used up")
            continue
        sizes = Sizes(**{**vars(MODELS[model]), "style": asked.style})
        table, measured[f"{model} {group}"], trouble = run_group(
            sizes, group, groups()[group], seconds, STEPS_PER_TURN[model]
        )
        print(table.markdown(), flush=True)
        tables.append(table)
        wrong += trouble
        settings = {
            "threads per rank": 1,
            "products of shardkit": our_products()["blas"],
            **{name: str(MODELS[name]) for name in asked.models.split(",")},
        }
        save(
            "train_step" if asked.style == "gpt2" else f"train_step_{asked.style}",
            f"Training step ({asked.style})",
            tables,
            about=about,
            settings=settings,
            measured={**measured, "wrong": wrong},
        )
    print("\n".join([machine_text(about), *wrong]), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
