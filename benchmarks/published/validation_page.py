"""Write shardkit/plan/VALIDATION.md, every published point that the planner was compared with, in
tables, and shardkit/plan/residuals.toml, the band that follows from them.

python benchmarks/published/validation_page.py
"""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean
from textwrap import fill

from blind_runs import blind_families
from judged import (
    Judged,
    by_family,
    figures,
    judged_programs,
    memory_errors,
    pick_regrets,
    within_as_mixed,
)
from megatron_runs import LLAMA_405B, TUNED, llama3, llama3_plans, megatron
from published_runs import (
    CLUSTER,
    Point,
    halves,
    korthikanti,
    largest_error,
    layer_milliseconds,
    mean_error,
    narayanan,
    ratio,
    zero3_against_ptd,
    zero3_large,
    zero_paper,
)
from residuals import OWN_RUNS, choosing, float8_families, fsdp_families, judging, residuals_text

from shardkit.plan import read_cluster
from shardkit.plan.band import RESIDUALS, bands
from shardkit.plan.cost import checkpoint_bytes
from shardkit.plan.whole_run import interruptions_of

PAGE = Path(__file__).resolve().parents[2] / "shardkit" / "plan" / "VALIDATION.md"
_IS_FAR = 0.2
_HEAD = f"""# The planner against published runs

`python benchmarks/published/validation_page.py` writes this page; a test keeps it up to date. Times
on A100s are for one hardware description, `hardware/{CLUSTER}.toml`, those on H100s for
`hardware/h100-80gb-ndr.toml`; their figures come from data sheets and measurements of the hardware
that are named there. The efficiency curve of matrix products, the speed of fused attention, the
contention of collectives with computing and the spread of equal devices are properties of the
device: no row has a parameter of its own. The levels of these were chosen within the range of those
sources with two sets of times in view: arXiv 2205.05198, and the choosing halves below. ArXiv
2104.04473 was run with the same file; but the spread of equal A100s, whose source leaves a factor
of two open, was settled after its effect on table 1 there was seen. `shardkit/plan/programs` and,
for variants, `published_runs.py` and others beside the program that writes this page describe each
published program (which gradients it sums where, what it waits for) from its source code; what had
to be chosen for a program is said there. The micro-batches and virtual stages of table 1 of arXiv
2104.04473 are in `examples/sc21/run_table_1.sh` of the Megatron-LM repository.

Not every figure was compared with its source when it was written down. Quoted from memory are: the
529.6B rows of ZeRO-3, the 73% and 63% of FlashAttention-2, the 720 TFLOP/s of an H100, table 4 and
the pods of Llama 3, and that ZeRO-3 gathers twice in backward. Those of FlashAttention-3's paper
were read off a transcription of its charts."""
_MEMORY = """## Memory by policy

ArXiv 1910.02054, figure 1: GB per device, 7.5 billion parameters, 64 devices, mixed precision Adam.

"""
_LAYER = """## One layer

ArXiv 2205.05198, table 4: milliseconds of forward and backward, 22B model, 8 GPUs, micro-batch 4.

"""
_STEP = """## Seconds of a step

ArXiv 2205.05198, table 5: 8 tensor ranks, no data parallelism.

"""
_SCALING = """## Weak scaling from 32 to 3072 GPUs

ArXiv 2104.04473, table 1: achieved TFLOP/s per GPU, full recomputation. The program is that of
early 2021, which reads and writes each weight gradient once more per micro-batch.

"""
_ZERO3 = """## ZeRO-3 alone against tensor, pipeline and data together

ArXiv 2104.04473, table 2, 174.6B parameters, a fixed batch of 1536: TFLOP/s per GPU. The question
is where ZeRO-3 falls off.

"""
_LARGE = """The 529.6B rows of ZeRO-3 in the same table choose what is not known of that
program, and the 174.6B rows above judge it. They are no blind test: that description was changed
twice after the factor that it gave for them was seen, 5.12 and then 4.01.

"""
_H100 = """## Tensor, pipeline and data ranks on H100

The table of the repository NVIDIA/Megatron-LM (`images/model_table.png`, 2024): 8 tensor ranks at
most, 48 data ranks, 4096 tokens, BF16. No constant was chosen with it. Its micro-batches and
virtual stages are not published; those that the planner finds quickest stand in for them.

"""
_LLAMA = """### Llama 3 405B

ArXiv 2407.21783, table 4: 8 tensor ranks, 16 pipeline ranks, sequences of 8192. The hardware is
`h100-80gb-roce.toml`, the policy ZeRO-1. Of the 128 stages the first has the
embedding alone, the last the head, and the others a layer each.

"""
_PLANS = """What `shardkit plan --software tuned` prints for it, the first three meshes. Meta ran
16 x 128 x 8 on 16,384 GPUs and reached 400; it computed nothing again (section 3.3.2), which
`tuned` does where its memory is more than 76 GB.

"""
_BAND = """## The band

`shardkit plan` prints a band around each time: between which factors of the predicted seconds nine
of ten runs are expected. Rows that may choose constants make it, 19 of 20 of them, since families
that chose nothing are further off; a program with few rows gets at least the band of all programs,
each counted once. A layout with more devices or parameters than the largest run of its program, or
on other devices, gets twice the band; a program that nobody measured that of all programs, planned
as `mixed`. Those of ranks on processors are the layouts of the runs above, with the predictions
that were made then.

"""
_JUDGED = """## Programs that a user can name, on rows that chose nothing

`shardkit plan --software NAME`, by `shardkit/plan/programs/NAME.toml`. {rows} rows judge: those of
the judging halves above, the tables of 2104.04473 and of Megatron on H100s, and {blind} runs of
{families} families of Aleph Alpha, nanotron, fms-fsdp and NVIDIA (`blind.csv`; sources in
`blind_runs.py`). Families of each source were drawn by the SHA-256 of their names before a constant
was chosen: the first, third, ... choose, the others judge. No value of a program was fitted to a
row that judges. They are no blind test all the same: mean errors of all families were printed
before anything was chosen, and those of the judging ones twice more before the memory of
`megatron-eager` was. How wide bands are was settled with the part of judging rows in view that
narrower ones held, 73 to 84%.

When six judging rows were 30 to 64% off, four mechanisms were looked for in the programs; the value
of each is from sources or choosing rows. A program may reduce slower over more nodes (`ring_nodes`
of `megatron`: {llama} choosing rows of Aleph Alpha are {nodes:.2%} off on average, and {share:.2%}
with the one share of 0.32 that it replaces). Between nodes, short collectives of tensor ranks do
not reach the speed of long ones (`ramp_bytes`, by the one choosing row that has some). nanotron
cuts stages by compute, and its host copies what a layer exchanges with each data rank: both stand
in its source; the 10 us of a copy are a usual figure, from memory. Its `efficiency` and
`link_share` are those with the least mean error on its choosing rows. Before, the mean error of all
rows was 6.7%, the bias -4.1%, the largest error 64.3% and the regret 4.6%.

Errors are of the seconds: a prediction at -5% is too quick by that.

"""
_REST = """Of {verdicts} layouts of Aleph Alpha {oom} ended without memory; {fits:.1%} of the
verdicts, fits or not, are right. In {sweeps} sweeps the layout predicted to be the quickest took
{regret:.1%} more than the quickest, on average. Planned as `mixed`, as if nobody knew the programs,
{mixed:.1%} of the {rows} rows are within the band. The memory of {held} rows of nanotron that judge
is predicted at {bias:+.1%} on average; the choosing ones are at {chosen:+.1%}.

The targets were a mean error of 10%, a bias within 5%, a largest error of 30%, bands that hold 85
to 95%, 93% of verdicts and a regret of 5%. Missed: {missed}. Rows that are more than 20% off:
"""
_CAUSES = """What these have in common: Aleph Alpha's 30B with one or two stages reduces over 16 and
32 nodes, choosing rows over no more than 16; its 65B has the smallest pieces of work, one sample on
8 tensor ranks; nanotron on 512 GPUs computes for less time than the host works, and with one data
rank its micro-batches just fit; MPT has memory that is predicted not to fit; and the micro-batches
of Megatron's 31.5B are not published."""
_OWN = """## Ranks on processors

`benchmarks/planner.py` on {processor}, {cores} cores: layouts of
shardkit itself, against one rank that takes turns with them, by the hardware file that `shardkit
bench hardware` wrote before each run. No row of any run chose a constant. The place is that of the
layout predicted to be the quickest among the measured ones; the load is that of the machine, the
ranks with it. Run 4 had another process of nice 5 at work beside it all the time. No plan knows of
that: it takes a part of a core from two ranks that have one each.

"""
_FSDP = """## FSDP on A100 and H100

Three families that nobody fitted anything to when they were put in. Each is split in halves by a
rule that was there before any constant was chosen: the rows in the order of the SHA-256 of their
names; the first, third, ... are for choosing, the others for judging. No constant comes from a
judging row. Only the halves of MPT are apart from each other: the six rows of 175B are two
published figures, each said to hold for all three sizes, so that both halves have both; and the
rows of 8B are two programs on two sizes, so that each half has both programs.

Rows that are far off have memory predicted above the 76 GB that the hardware files leave a rank,
and on all rows of the judging half of A100 the largest error is not below a quarter because of
them. There PyTorch's allocator gives blocks back and asks for them again, which may be the
cause; it is not shown. A cost by memory would have to be chosen on the choosing half, which has
none:
{full}
So no such cost is predicted, and `shardkit plan` offers no layout of such memory.

- MPT: `scripts/train/benchmarking/README.md` of mosaicml/llm-foundry, GPTs of 125 million to 70
  billion parameters, tokens of a sequence x micro-batch x micro-batches: tokens/s per GPU.
- 175B: arXiv 2304.11277, section 5.4, with 2 Tb/s of RoCE between nodes: TFLOP/s per GPU with the
  recomputed forward.
- 8B: `benchmarks/llama3_h100_202412_torchtitan.md` of pytorch/torchtitan, Llama 3.1 8B in bfloat16
  on H100s of 96 GB, 2.4 TB/s and 500 W: tokens/s per GPU."""

_FLOAT8 = """## Products in float8

No constant but NeMo's efficiency of 1.05, which its choosing half and that of `blind.csv` ask for,
was chosen with a row of these families; they are split by the same rule. That its gradients are
halves was looked up when rows that may choose were predicted not to fit. The peak is that of the
data sheet. The curve is that of halves: a product of as
many more operations as the peak is higher takes as long, and reaches the same fraction. Products of
layers with their matrices are in float8; attention, norms, the embedding and the head are not.
Operands are cast by passes over memory, and the largest magnitudes are agreed on by tensor ranks;
`software.py` and `float8_runs.py` say which. They are no blind test: three descriptions of programs
were looked up after errors were seen. Torchtitan computes all products in float8 again, without
which Llama 3.1 8B was 6 to 10% too fast; Transformer Engine casts with the scales of earlier steps,
in one pass, and NeMo takes cuDNN's attention, without which NeMo was 13% too slow, and MPT 3% too
fast.

- MPT: the same README as above, table "H100 80GB FP8", on Transformer Engine: tokens/s per GPU.
- Llama 3.1 8B: the same file as above, and
  `benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md`, gathers in float8: tokens/s per GPU.
- 70B and 405B: the same file, 8 tensor ranks, all layers computed again. How many micro-batches and
  virtual stages the 405B runs had is not published.
- NeMo: the performance summaries of NeMo 24.07, 25.09 and 25.11, rows without context parallelism,
  with their micro-batches and virtual stages: tokens/s per GPU."""


def _family(heading: str, points: list[Point]) -> list[str]:
    chosen, judged = halves(points)
    return [
        f"### {heading}, judging half",
        _points(judged),
        _summary(judged),
        f"### {heading}, choosing half",
        _points(chosen),
        _summary(chosen),
    ]


def validation_page() -> str:
    """Return the page."""
    times = korthikanti()
    throughput = narayanan()
    fixed = zero3_against_ptd()
    sections = [
        _HEAD,
        _MEMORY + _table("policy", "GB", zero_paper()),
        _LAYER + _table("layer", "ms", layer_milliseconds()),
        _STEP + _points(times),
        _summary(times),
        _SCALING + _points(throughput),
        _summary(throughput),
        _ZERO3 + _points(fixed),
        _knee(fixed),
        _LARGE + _points(zero3_large()),
        _summary(zero3_large()),
        _FSDP.format(full=_full()),
        *(part for family in fsdp_families().items() for part in _family(*family)),
        _FLOAT8,
        *(part for family in float8_families().items() for part in _family(*family)),
        _H100 + _points(megatron()),
        _summary(megatron()),
        _LLAMA + _table("run", "model TFLOP/s", llama3()),
        _PLANS + _plans(),
        _stops(),
        _own(),
        _judged(),
        _BAND + _bands(),
    ]
    return "\n\n".join(sections) + "\n"


def _full() -> str:
    """Say how the rows of the choosing half of A100 fare whose memory is predicted not to fit."""
    chosen, _ = halves(fsdp_families()["MPT on A100"])
    full = [point for point in chosen if not point.fits]
    return (
        f"its {len(full)} rows above 76 GB, of up to {max(p.gigabytes for p in full):.1f} GB, are "
        f"off by {min(p.error for p in full):+.1%} to {max(p.error for p in full):+.1%}."
    )


def _plans() -> str:
    cells = [("GPUs, sequences", "pipeline x data x tensor", "how", "s", "model TFLOP/s")]
    for devices, batch in ((512, 64), (16384, 2048)):
        cells += [
            (f"{devices:,}, {batch:,}", mesh, how, _figure(seconds), _figure(speed))
            for mesh, how, seconds, speed in llama3_plans(devices, batch)
        ]
    return _aligned(cells)


def _stops() -> str:
    """Say what share of Llama 3's time goes into steps, beside what it reached."""
    cluster = read_cluster("h100-80gb-roce")
    seconds = checkpoint_bytes(LLAMA_405B, TUNED) / cluster.storage_speed(16384)
    stops = interruptions_of(cluster, 16384, seconds)
    slower = replace(stops, restart_seconds=600.0)
    shares = [one.useful_share(one.best_interval()) for one in (stops, slower)]
    return (
        "Section 3.3.4: a stop every 3.1 hours on 16,384 GPUs, from which the hardware file has "
        f"its\nrate, and more than 90% of the time in steps. Predicted, with checkpoints of "
        f"{stops.checkpoint_seconds:.1f} s\nevery {stops.best_interval() / 60:.1f} minutes: "
        f"{shares[0]:.1%} if restarts took no time, {shares[1]:.1%} if they took 10\n"
        "minutes; how long they took is not published."
    )


def _own() -> str:
    """Return the section on the own machine, by the runs that are stored."""
    stored = json.loads(OWN_RUNS.read_text(encoding="utf-8"))
    cells = [("run", "mean error of time", "of memory", "place of the predicted best", "load")]
    for table in stored["tables"]:
        _, ranks, run = table["title"].split(", ")
        errors = stored["measured"][f"errors on {ranks}, {run}"]
        cells.append(
            (
                f"{len(table['rows'])} layouts on {ranks}, {run}",
                f"{errors['time']:.1%}",
                f"{errors['memory']:.1%}",
                str(errors["place"]),
                f"{errors['load']:.1f}",
            )
        )
    return _OWN.format(**stored["machine"]) + _aligned(cells)


def _bands() -> str:
    cells = [("family", "rows", "low", "high")]
    cells += [
        (band.family, str(band.rows), f"{band.low:.2f}", f"{band.high:.2f}")
        for band in bands().values()
    ]
    return _aligned(cells)


def _judged() -> str:
    """Return the section on programs that a user can name."""
    rows, families = judging(), by_family()
    blind = [row for family in families.values() for row in family]
    total = figures(rows, [*families])
    cells = [("program", "rows", "mean error", "bias", "largest", "within the band")]
    cells += [_line(name, found) for name, found in judged_programs(rows).items()]
    cells.append(_line("all", total))
    of_families = [("family that judges", *cells[0][1:])]
    of_families += [_line(name, figures(own)) for name, own in families.items()]
    whole = figures(blind)
    of_families.append(_line("all of these", whole))
    head = _JUDGED.format(rows=len(rows), blind=len(blind), families=len(families), **_by_nodes())
    tables = _aligned(cells), _aligned(of_families)
    return head + "\n\n".join([*tables, _rest(rows, families, total, whole), *_off(rows)])


def _rest(rows: list[Point], families: dict, total: Judged, blind: Judged) -> str:
    """Return the text about memory, picks and targets."""
    regrets = pick_regrets([*families])
    tried = [row for name in families for row in blind_families()[name]]
    chosen = [row for name, own in blind_families().items() if name not in families for row in own]
    text = _REST.format(
        rows=len(rows),
        verdicts=total.verdicts,
        oom=sum(not row.has_run for row in tried),
        fits=total.fits,
        sweeps=len(regrets),
        regret=mean(regrets),
        mixed=within_as_mixed(rows),
        held=len(memory_errors(tried)),
        bias=mean(memory_errors(tried)),
        chosen=mean(memory_errors(chosen)),
        missed=_missed("of all rows", total) + "; " + _missed("of these families", blind),
    )
    return "\n\n".join(fill(part, 100, break_on_hyphens=False) for part in text.split("\n\n"))


def _off(rows: list[Point]) -> list[str]:
    """Return the list of rows that are more than a fifth off, and what they have in common."""
    errors = sorted((1 / ratio(row) - 1, row.name) for row in rows)
    far = [f"- {name}: {error:+.1%}" for error, name in errors if abs(error) > _IS_FAR]
    return ["\n".join(far), _CAUSES]


def _by_nodes() -> dict[str, float]:
    """Return how many choosing rows of Aleph Alpha there are, and how far they are off by nodes and
    with one share.
    """
    rows = [row for row in choosing() if row.name.startswith("llama_")]
    share = {"ring_nodes": 0.0, "link_share": 0.32}
    flat = [replace(row, software=replace(row.software, **share)) for row in rows]
    return {"llama": len(rows), "nodes": figures(rows).error, "share": figures(flat).error}


def _line(name: str, found: Judged) -> tuple[str, ...]:
    shares = found.error, found.largest, found.within
    error, largest, within = (f"{share:.1%}" for share in shares)
    return name, str(found.rows), error, f"{found.bias:+.1%}", largest, within


def _missed(which: str, found: Judged) -> str:
    """Return which targets of a plan's time were missed."""
    missed = [
        f"{what} {figure:+.1%}"
        for what, figure, is_met in (
            ("the mean error", found.error, found.error <= 0.1),
            ("the bias", found.bias, abs(found.bias) <= 0.05),
            ("the largest error", found.largest, found.largest <= 0.3),
            ("the part within bands", found.within, 0.85 <= found.within <= 0.95),
        )
        if not is_met
    ]
    return f"{which}, {', '.join(missed) or 'nothing'}"


def _far(points: list[Point]) -> list[str]:
    """Return a sentence about each row that is more than a fifth off."""
    return [
        f"{point.name}: {point.error:+.1%}; its memory is predicted as {point.gigabytes:.1f} GB."
        for point in points
        if abs(point.error) > _IS_FAR
    ]


def _points(points: list[Point]) -> str:
    rows = [(point.name, point.published, point.predicted) for point in points]
    return _table("run", points[0].unit, rows)


def _table(what: str, unit: str, rows: list[tuple[str, float, float]]) -> str:
    cells = [
        (what, f"published, {unit}", f"predicted, {unit}", "error"),
        *(
            (name, _figure(published), _figure(predicted), f"{predicted / published - 1:+.1%}")
            for name, published, predicted in rows
        ),
    ]
    return _aligned(cells)


def _aligned(cells: list[tuple[str, ...]]) -> str:
    """Return a table of cells, the first row its head, the first column to the left."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for name, *others in [cells[0], rule, *cells[1:]]:
        aligned = [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        lines.append(f"| {' | '.join([name.ljust(widths[0]), *aligned])} |")
    return "\n".join(lines)


def _figure(number: float) -> str:
    digits = 0 if number >= 100 else 1 if number >= 15 else 2
    return f"{number:.{digits}f}"


def _summary(points: list[Point]) -> str:
    summary = f"Mean error {mean_error(points):.1%}, largest {largest_error(points):.1%}."
    return "\n".join([summary, *_offered(points), *_far(points)])


def _offered(points: list[Point]) -> list[str]:
    """Return a line about the rows that `shardkit plan` would offer, if others are far off."""
    if all(point.fits for point in points if abs(point.error) > _IS_FAR):
        return []
    offered = [point for point in points if point.fits]
    return [
        f"Of the {len(offered)} whose memory is predicted to fit: mean error "
        f"{mean_error(offered):.1%}, largest {largest_error(offered):.1%}."
    ]


def _knee(points: list[Point]) -> str:
    lines = []
    for name, first, last in (
        ("ZeRO-3", points[0], points[2]),
        ("PTD-P", points[3], points[5]),
    ):
        published = first.published / last.published
        predicted = first.predicted / last.predicted
        lines.append(
            f"From 384 to 1536 GPUs {name} loses a factor of {published:.2f} per GPU as published, "
            f"{predicted:.2f} as predicted."
        )
    return "\n".join(lines)


if __name__ == "__main__":
    RESIDUALS.write_text(residuals_text(), encoding="utf-8")
    PAGE.write_text(validation_page(), encoding="utf-8")
    print(PAGE)
