"""Build as setuptools does; a wheel with machine code for some kinds of CPU if that is asked for.

    pip wheel . --config-settings kernels=x86-64-v3,x86-64-v4,x86-64-v4bf16

Its users compile none of the common loops (shardkit/array/cpu/packs.py). It fits any machine: where
there is no code for a CPU, that is compiled when a loop is first called.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

ROOT = Path(__file__).resolve().parents[1]


def get_requires_for_build_wheel(config_settings=None):
    """Return what building takes: the package runs for it if code is to be made."""
    required = build_meta.get_requires_for_build_wheel(config_settings)
    if not _targets(config_settings):
        return required
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*required, *project["dependencies"]]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel, after the code that is asked for."""
    targets = _targets(config_settings)
    if targets:
        command = [sys.executable, "-m", "shardkit.array.cpu.building", *targets]
        subprocess.run(command, cwd=ROOT, check=True)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def _targets(config_settings) -> list[str]:
    """Return the targets that are asked for, kernels=A,B."""
    text = (config_settings or {}).get("kernels", "")
    return [name.strip() for name in text.split(",") if name.strip()]
