"""`shardkit bench` and `shardkit bench hardware`."""

from pathlib import Path

from ..comm.same import alike, facts_of
from ..errors import ConfigurationError
from ..plan.measure import hardware_run
from ..train.bench import bench_run
from ..train.settings import RunConfiguration
from .arguments import count, local_path, option
from .job import job, mpi_backend
from .settings import Given, parsed

_BENCH = """show where the time of a training step goes

Take a few steps and show where their time goes:
  mpiexec -n 4 shardkit bench [settings.toml] [--section.key=value ...]
The settings are those of `shardkit train`. No result is kept."""
_BENCH_HARDWARE = """measure this machine for `shardkit plan`

Measure this machine, for `shardkit plan`:
  mpiexec -n 4 shardkit bench hardware --output my-node.toml [--parallel.blas=mkl]"""


def add_commands(add_command) -> None:
    """Add the parsers of both commands."""
    bench = add_command("bench", _bench, _BENCH, takes_settings=True)
    option(
        bench,
        "settings",
        "TOML file, as for `shardkit train`; for a file named hardware: ./hardware",
        nargs="?",
        type=local_path,
    )
    option(
        bench,
        "--steps",
        "steps to measure, each also once without the stopwatch",
        type=count,
        default=7,
    )
    option(bench, "--json FILE", "also write all figures to this file")
    hardware = add_command("bench hardware", _hardware, _BENCH_HARDWARE, takes_settings=True)
    option(hardware, "--output FILE", "hardware file to write", default="hardware.toml")


def _bench(known, overrides) -> int:
    backend = mpi_backend()
    with job(backend):
        settings = Given.read(known.settings, overrides).settings()
        bench_run(settings, backend, steps=known.steps, json_path=known.json)
    return 0


def _hardware(known, overrides) -> int:
    backend = mpi_backend()
    with job(backend):
        with alike(backend) as facts:
            blas = _blas(overrides)
            facts |= facts_of(
                {"parallel.blas": blas, "--output": str(Path(known.output).resolve())}
            )
        hardware_run(backend, known.output, blas=blas)
    return 0


def _blas(overrides) -> str:
    """Return parallel.blas. Errors: ConfigurationError on any other setting."""
    settings = parsed(overrides)
    others = sorted(set(settings) - {"parallel.blas"})
    if others:
        raise ConfigurationError(
            f"bench hardware with --{others[0]}; it measures the machine and no model: wanted no "
            "setting but --parallel.blas"
        )
    return RunConfiguration().replace(settings).parallel.blas
