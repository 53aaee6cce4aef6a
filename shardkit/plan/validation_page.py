"""VALIDATION.md: every published point that the planner was compared with, in tables.

python -m shardkit.plan.validation_page
"""

from pathlib import Path

from .validation import (
    CLUSTER,
    Point,
    korthikanti,
    largest_error,
    layer_milliseconds,
    mean_error,
    narayanan,
    zero3_against_ptd,
    zero_paper,
)

PAGE = Path(__file__).parent / "VALIDATION.md"
_HEAD = f"""# What the planner says about published runs

Written by `python -m shardkit.plan.validation_page`; a test holds it up to date. All times are for one hardware description,
`hardware/{CLUSTER}.toml`, whose figures come from data sheets and measurements of the hardware that are named there. Its
efficiency curve of matrix products and its fraction of the memory bandwidth are properties of the device: no row has a
parameter of its own. Their levels were settled within the range of those sources with the times of arXiv 2205.05198 in view;
arXiv 2104.04473 was run with the same file. What a program does (which gradients it sums where, what it waits for) is in
`software.py`, from its source code. The micro-batches and virtual stages of that paper's table 1 stand in
`examples/sc21/run_table_1.sh` of the Megatron-LM repository."""


def validation_page() -> str:
    """The page."""
    times, throughput, fixed = korthikanti(), narayanan(), zero3_against_ptd()
    return (
        "\n\n".join(
            [
                _HEAD,
                "## Memory by policy\n\nArXiv 1910.02054, figure 1: GB per device, 7.5 billion parameters, 64 devices, mixed precision "
                "Adam.",
                _table(
                    "policy",
                    "GB",
                    [(name, published, predicted) for name, published, predicted in zero_paper()],
                ),
                "## One layer\n\nArXiv 2205.05198, table 4: milliseconds of forward and backward, 22B model, 8 GPUs, micro-batch 4.",
                _table("layer", "ms", layer_milliseconds()),
                "## Seconds of a step\n\nArXiv 2205.05198, table 5: 8 tensor ranks, no data parallelism.",
                _points(times),
                _summary(times),
                "## Weak scaling from 32 to 3072 GPUs\n\nArXiv 2104.04473, table 1: achieved TFLOP/s per GPU, full recomputation. The "
                "program is that of early 2021, which reads and writes each weight gradient once more per micro-batch.",
                _points(throughput),
                _summary(throughput),
                "## ZeRO-3 alone against tensor, pipeline and data together\n\nArXiv 2104.04473, table 2, 174.6B parameters, a fixed "
                "batch of 1536: TFLOP/s per GPU. What is looked for is the knee.",
                _points(fixed),
                _knee(fixed),
            ]
        )
        + "\n"
    )


def _points(points: list[Point]) -> str:
    return _table(
        "run", points[0].unit, [(point.name, point.published, point.predicted) for point in points]
    )


def _table(what: str, unit: str, rows: list[tuple[str, float, float]]) -> str:
    cells = [
        (what, f"published, {unit}", f"predicted, {unit}", "error"),
        *(
            (name, _figure(published), _figure(predicted), f"{predicted / published - 1:+.1%}")
            for name, published, predicted in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*cells)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(
        "| "
        + " | ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths))
        )
        + " |"
        for row in [cells[0], rule, *cells[1:]]
    )


def _figure(number: float) -> str:
    return (
        f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 15 else f"{number:.2f}"
    )


def _summary(points: list[Point]) -> str:
    return f"Mean error {mean_error(points):.1%}, largest {largest_error(points):.1%}."


def _knee(points: list[Point]) -> str:
    def factor(first, last, of):
        return of(points[first]) / of(points[last])

    return "\n".join(
        f"From 384 to 1536 GPUs {name} loses a factor of {factor(*ends, lambda p: p.published):.2f} per GPU as "
        f"published, {factor(*ends, lambda p: p.predicted):.2f} as predicted."
        for name, ends in (("ZeRO-3", (0, 2)), ("PTD-P", (3, 5)))
    )


if __name__ == "__main__":
    PAGE.write_text(validation_page(), encoding="utf-8")
    print(PAGE)
