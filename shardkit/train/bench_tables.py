"""The figures of `shardkit bench` as tables for people."""

from ..files.tables import table_console, table_of
from ..plain import counted
from .bench_figures import PARTS

_MOST_ROWS = 8  # of kernels, and of products, in the table


def print_figures(figures: dict) -> None:
    """Print the figures as tables, and the advice."""
    console = table_console()
    reached = figures["model_flops_per_second"] / 1e9
    alone = figures["product_flops_per_second_alone"] / 1e9
    peaks = [f"{num_bytes / 2**20:.0f}" for num_bytes in figures["peak_bytes_per_rank"][:8]]
    console.print(
        f"shardkit: {figures['parameter_count']:,} parameters as {figures['strategy']} on "
        f"{counted(figures['ranks'], 'rank')} ({figures['mesh']}), "
        f"{counted(figures['threads_per_rank'], 'thread')} each "
        f"on {counted(figures['cores_per_node'], 'core')}\n"
        f"step {figures['step_seconds'] * 1e3:.1f} ms, "
        f"{figures[figures['unit'] + '_per_second']:,.0f} {figures['unit']}/s; "
        f"model FLOP utilization {figures['model_flop_utilization']:.0%}: {reached:.1f} of "
        f"{alone:.1f} GFLOP/s, the speed of its matrix products alone\n"
        f"peak memory per rank {' '.join(peaks)} MiB; a step waits "
        f"{figures['data_wait_seconds'] * 1e3:.2f} ms for its data",
        markup=False,
    )
    console.print(_parts_table(figures))
    kernels = [
        (name, row["calls"], row["seconds"], None) for name, row in figures["kernels"].items()
    ]
    products = [
        (row["product"], row["calls"], row["seconds"], row["flops"] / row["seconds"])
        for row in figures["products"]
    ]
    console.print(_rows_table("kernel", kernels))
    console.print(_rows_table("matrix product", products))
    for sentence in figures["advice"]:
        console.print(f"- {sentence}", markup=False)


def _parts_table(figures):
    ranks = [f"rank {rank}, ms" for rank in range(figures["ranks"])][:8]
    table = table_of("part of the step", *ranks, "share", right=range(1, 10))
    total = sum(figures["parts"].values())
    for part, words in PARTS.items():
        table.add_row(
            words,
            *[f"{of_rank[part] * 1e3:.2f}" for of_rank in figures["parts_per_rank"][:8]],
            f"{figures['parts'][part] / total:.1%}",
        )
    return table


def _rows_table(what, rows):
    """Return a table of the first few (name, calls, seconds, operations per second or None)."""
    speed = "" if rows and rows[0][3] is None else "GFLOP/s"
    table = table_of(what, "calls", "ms", speed, right=range(1, 4))
    for name, calls, seconds, speed in rows[:_MOST_ROWS]:
        table.add_row(
            name,
            f"{calls:g}",
            f"{seconds * 1e3:.2f}",
            "" if speed is None else f"{speed / 1e9:.1f}",
        )
    return table
