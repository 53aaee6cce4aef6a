"""CPU quotas: how much time on cores the control groups of this process grant.

    /proc/self/cgroup     0::/job/step              4:cpu,cpuacct:/job/step
    read, v2              .../job/step/cpu.max      "150000 100000": 1.5 cores; "max": no quota
    read, v1              .../job/step/cpu.cfs_quota_us, cpu.cfs_period_us; -1: no quota

A container may run on all cores of its host and yet be stopped for the rest of each tenth of a
second once its quota is used up; affinity masks do not show that. Quotas of the groups around a
group hold too. Source: Control Group v2, and CFS Bandwidth Control, of the kernel's documentation.
"""

import os
from contextlib import suppress
from pathlib import Path


def own_quotas(root: str | Path = "/") -> dict[str, float]:
    """Return {control group: cores} of every group around this process that has a quota.

    A name is the same in all processes of a host, in containers too.
    root   of the file system
    """
    with suppress(OSError):  # no such files: not Linux
        lines = Path(root, "proc/self/cgroup").read_text().splitlines()
        mounts = Path(root, "proc/self/mountinfo").read_text().splitlines()
        return {
            _name(folder): cores
            for kind, path in _memberships(lines)
            for folder in _folders(root, path, *_mount(mounts, kind))
            if (cores := _cores(folder)) is not None
        }
    return {}


def _memberships(lines):
    """Yield ("cgroup2", path), and ("cgroup", path) in the hierarchy of the CPU controller."""
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield "cgroup2", path
        elif "cpu" in controllers.split(","):
            yield "cgroup", path


def _mount(lines, kind):
    """Return which group such a file system shows as its top, and where; or None twice."""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, (found, _, options) = before.split(), after.split(" ", 2)
        if found == kind and (kind == "cgroup2" or "cpu" in options.split(",")):
            return fields[3], fields[4]
    return None, None


def _folders(root, path, top, mounted_at):
    """Return the folders of a group and of those around it, as far as they can be seen."""
    if mounted_at is None:
        return []
    at = Path(root, mounted_at.lstrip("/"))
    inside = os.path.relpath(path, top)
    if inside.startswith(".."):  # the path is the host's, and the mount shows the container's
        inside = "."
    folder = at / inside
    return [part for part in (folder, *folder.parents) if part.is_relative_to(at)]


def _cores(folder: Path) -> float | None:
    """Return the quota of a group, in cores; None if it has none."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):  # "max" is no number
            quota, period = map(int, " ".join((folder / n).read_text() for n in names).split())
            return quota / period if quota > 0 else None
    return None


def _name(folder: Path) -> str:
    status = folder.stat()
    return f"{status.st_dev}:{status.st_ino}"
