"""A job script for a layout that the planner recommends."""

from ..errors import ConfigurationError
from ..plan.hardware import Cluster
from ..plan.layouts import RunLayout
from ..train.settings import RunConfiguration
from .render import JobPlan, render


def script_of_plan(
    layout: RunLayout,
    cluster: Cluster,
    settings: RunConfiguration,
    arguments: list[str],
    time: str,
    path: str,
) -> str:
    """Return the SLURM script that runs `shardkit train` with these arguments under the layout.

    Errors: ConfigurationError if the ranks do not fill their nodes evenly, or the settings do not
    fit.
    """
    nodes = -(-layout.devices // cluster.devices)
    if layout.devices % nodes:
        raise ConfigurationError(
            f"{layout.devices} ranks = {nodes} nodes x {layout.devices // nodes} + "
            f"{layout.devices % nodes}; a job script wants as many ranks on each node: take a "
            f"multiple of {cluster.devices}"
        )
    template = "single_node" if nodes == 1 else "multi_node"
    if settings.parallel.device == "cuda":
        template = "gpu_node"
    plan = JobPlan(template, nodes, layout.devices // nodes, time=time)
    return render(plan, settings, arguments, path)
