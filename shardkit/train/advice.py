"""What the figures of `shardkit bench` suggest, in words: rules of thumb, each with the number that
set it off.
"""

from ..layout.policy import POLICIES
from ..schedule.catalog import ORDERS

_MANY, _SOME = 0.15, 0.10  # shares of the step that are worth a sentence
_CLEARLY_LESS = 0.95  # of the time: what is worth another library, and other bits
_SMALL_MESSAGE = 128 * 1024  # bytes; below it a message costs more for being one than for its bytes


def advise(figures: dict) -> list[str]:
    """Sentences, the most telling first; one that says so if nothing stands out."""
    total = sum(figures["parts"].values())
    shares = {part: seconds / total for part, seconds in figures["parts"].items()}
    found = [
        rule(figures, shares)
        for rule in (
            _cores,
            _idle,
            _communication,
            _python,
            _optimizer,
            _slowed_products,
            _small_products,
            _other_blas,
        )
    ]
    return [sentence for sentence in found if sentence] or [
        "nothing stands out: most of the step is arithmetic"
    ]


def _cores(figures, shares):
    ranks = figures["ranks_per_node"]
    threads = figures["threads_per_rank"]
    cores = figures["cores_per_node"]
    if ranks * threads > cores:
        return (
            f"{ranks} ranks x {threads} threads share {cores} cores: every wait costs much more "
            "than on cores of their own; "
            f"start {max(cores // threads, 1)} ranks, or set run.threads lower"
        )
    if 2 * ranks * threads <= cores:
        return (
            f"{cores - ranks * threads} of {cores} cores do nothing: start {cores // threads} "
            f"ranks, or set run.threads={cores // ranks}"
        )
    return None


def _idle(figures, shares):
    if shares["idle"] < _SOME:
        return None
    parallel, bubble = figures["settings"]["parallel"], figures["bubble_fraction"]
    if figures["settings"]["mesh"]["pipeline"] == 1:
        return (
            f"{shares['idle']:.0%} of the step a rank waits for others that do more or are slower: "
            "other processes on "
            "their cores, or a tensor axis that does not divide the layers evenly"
        )
    text = (
        f"{shares['idle']:.0%} of the step is waiting, of which the schedule "
        f"{parallel['schedule']} explains {bubble:.0%}"
    )
    remedy = "more micro-batches (a smaller batch.micro_batch, or more batch.sequences)"
    one_stage = [order for order in ORDERS.values() if order.stages_per_rank == 1]
    if any(o.name == parallel["schedule"] and not o.delays_weights for o in one_stage):
        remedy += "".join(f", or parallel.schedule={o.name}" for o in one_stage if o.delays_weights)
    balance = (
        ""
        if shares["idle"] < 1.5 * bubble
        else "; the stages are uneven: parallel.stage_balance=measured"
    )
    return f"{text}: {remedy}{balance}"


def _communication(figures, shares):
    if shares["communication"] < _MANY:
        return None
    parallel, calls = figures["settings"]["parallel"], max(sum(figures["sent_calls_per_rank"]), 1)
    per_call = sum(figures["sent_bytes_per_rank"]) / calls
    text = f"{shares['communication']:.0%} of the step is communication that nothing hides: "
    if figures["settings"]["mesh"]["tensor"] > 1:
        return (
            text
            + "fewer tensor ranks (mesh.tensor) send less, and more of them as data replicas send "
            "only gradients"
        )
    if per_call < _SMALL_MESSAGE and figures["settings"]["mesh"]["pipeline"] == 1:
        return text + (
            f"{per_call / 1024:.0f} KiB per call; fewer, larger ones with a larger "
            "parallel.minimum_parameter_group_size"
        )
    if parallel["policy"] == "fsdp":
        mib = POLICIES["ddp"].bytes_per_rank(figures["parameter_count"], 1) / 2**20
        return text + (
            f"if {mib:.0f} MiB for parameters, gradients and optimizer state fit on each rank, "
            "parallel.policy=ddp sends a third less; else more batch.sequences per step"
        )
    return (
        text + "more batch.sequences per step, or parallel.gradient_compression=float16 on a slow "
        "network"
    )


def _python(figures, shares):
    if shares["python"] < _SOME:
        return None
    return (
        f"{shares['python']:.0%} of the step is Python and does not grow with the sizes: a larger "
        "batch.micro_batch (fewer, larger pieces), or a wider model"
    )


def _optimizer(figures, shares):
    if shares["optimizer"] < _SOME:
        return None
    text = (
        f"{shares['optimizer']:.0%} of the step is clipping and the optimizer: more "
        "batch.sequences per step"
    )
    shards = figures["settings"]["parallel"]["policy"] == "ddp" and "data 1 " not in figures["mesh"]
    return text + (
        ", or parallel.policy=zero1, which shards it over the data ranks" if shards else ""
    )


def _slowed_products(figures, shares):
    ratio = sum(figures["products_alone_seconds"]) / (
        figures["parts"]["products"] * figures["ranks"] or 1.0
    )
    if ratio > 0.75:
        return None
    return (
        f"matrix products run at {ratio:.0%} of their speed alone: something else uses the cores, "
        "their caches or the memory; look for other processes, and bind ranks to cores"
    )


def _small_products(figures, shares):
    ratio = figures["product_flops_per_second_alone"] / figures["large_product_flops_per_second"]
    if ratio > 0.6 or shares["products"] < 0.3:
        return None
    return (
        f"the matrix products of these sizes reach {ratio:.0%} of a large one's speed: a larger "
        "batch.micro_batch, or a wider model, makes them larger"
    )


def _other_blas(figures, shares):
    others, own = figures["blas_seconds"], sum(figures["products_alone_seconds"])
    name = min(others, key=lambda name: sum(others[name]), default=None)
    if name is None or sum(others[name]) > _CLEARLY_LESS * own:
        return None
    return (
        f"parallel.blas={name} would take {1 - sum(others[name]) / own:.0%} off the time of matrix "
        "products here (the bits change)"
    )
