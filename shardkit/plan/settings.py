"""The settings of a run for the planner: those that it counts, searches for, or leaves out.

software_of(SHARDKIT, settings)     the program with the optimizer's state, clipping, compression,
                                    dtype and size of units of the settings
others_software(MIXED, settings)    a program for GPUs with the same, but for the size of units
left_out(settings, ...)             a line for each setting that a run follows and the plan does not
"""

from dataclasses import replace
from operator import attrgetter

from ..arguments import require
from ..array.dtypes import FLOAT8
from ..layout.axes import CHOSEN
from ..layout.flat import ITEM_BYTES
from ..optim.rules import RULES
from ..train.settings import RunConfiguration
from .cost import checkpoint_bytes
from .hardware import HALVES
from .layouts import RunLayout
from .shape import Shape
from .software import OWN, Software, in_float8
from .stages import blocks_per_stage

_GB = 1e9
_ONLY_OWN = ("model.dtype", "parallel.minimum_parameter_group_size")


def software_of(own: Software, settings: RunConfiguration) -> Software:
    """Return shardkit under these settings.

    own   shardkit as OWN or software_named() gives it

    Errors: ConfigurationError on a dtype that the runtime refuses to compute such a model in.
    """
    dtype = getattr(settings.model, "dtype", "float32")  # an MLP of a table has no other
    computed = own.dtype if own.rounds_when_gathered else settings.parallel.compute_dtype
    require(
        dtype == "float32" or computed in (None, dtype),
        "parallel.compute_dtype",
        computed,
        f'"model" for a model of {dtype}: master weights are float32',
    )
    item = ITEM_BYTES[dtype]
    arrays = _num_arrays(settings)
    is_mixed = own.rounds_when_gathered
    # the rule reads parameter, gradient and its arrays, and writes all but the gradient, which
    # clipping reads once more; a mixed run also rounds the parameter
    clips = settings.optimizer.max_gradient_norm is not None
    update_bytes = (3 + 2 * arrays + clips) * item + 6 * is_mixed
    software = replace(
        own,
        state_bytes=(arrays + is_mixed) * item,
        update_bytes=update_bytes,
        gradient_bytes=item,
        wire_bytes=item if settings.parallel.gradient_compression is None else 2,
        accumulation_bytes=3 * item,
        merges_below=settings.parallel.minimum_parameter_group_size,
    )
    if is_mixed or dtype == own.dtype:
        return software
    return replace(software, dtype=dtype, parameter_bytes=item, activation_bytes=item)


def others_software(program: Software, settings: RunConfiguration) -> Software:
    """Return a program that is not shardkit's under these settings.

    Its values are those of AdamW with clipping, which reads gradients for their norm and scales
    them; another rule reads and writes more or fewer arrays.

    Errors: ConfigurationError on a dtype that it does not compute in.
    """
    dtype = settings.parallel.compute_dtype
    require(
        dtype in (None, *HALVES, FLOAT8),
        "parallel.compute_dtype",
        dtype,
        f"{', '.join((*HALVES, FLOAT8))}, which {program.name} computes in",
    )
    require(
        dtype == FLOAT8 or program.gather_bytes is None,
        "parallel.compute_dtype",
        dtype,
        f"{FLOAT8}, in which {program.name} gathers parameters",
    )
    arrays = _num_arrays(settings) - 2
    clips = settings.optimizer.max_gradient_norm is not None
    compresses = settings.parallel.gradient_compression is not None
    heard = replace(
        program,
        dtype=dtype if dtype in HALVES else program.dtype,
        state_bytes=program.state_bytes + 4 * arrays,
        update_bytes=program.update_bytes - 12 * (not clips) + 8 * arrays,
        wire_bytes=2 if compresses else program.wire_bytes,
    )
    return in_float8(heard) if dtype == FLOAT8 else heard


def _num_arrays(settings: RunConfiguration) -> int:
    """Return the arrays as long as the parameters that the rule and the average keep."""
    averages = settings.optimizer.ema_decay is not None
    return len(RULES[settings.optimizer.name].state_names) + averages


def left_out(
    settings: RunConfiguration,
    shape: Shape,
    software: Software,
    layout: RunLayout,
    chosen: dict,
) -> list[str]:
    """Return a line for each setting that a run follows and the plan of this layout does not.

    chosen   {"section.key": value} of the layout
    """
    keys = settings.keys()
    values = {name: attrgetter(name)(settings) for name in keys}
    lines = [
        f"{name} = {values[name]!r} is searched for: here {value!r}"
        for name, value in chosen.items()
        if values[name] not in (value, keys[name].default)
    ]
    if software.name not in {own.name for own in OWN.values()}:
        return lines + [
            f"{name} = {values[name]!r} is not counted: {software.name} has its own values"
            for name in _ONLY_OWN
            if name in keys and values[name] != keys[name].default
        ]
    lines += [
        f"{name} = {values[name]!r} is not counted: {key.metadata['unplanned']}"
        for name, key in keys.items()
        if "unplanned" in key.metadata and _is_followed(name, values[name], key.default, layout)
    ]
    if settings.run.asynchronous_checkpoints:
        copy = checkpoint_bytes(shape, software) / layout.devices / _GB
        lines.append(
            f"run.asynchronous_checkpoints = True is not counted: {copy:.3g} GB more of host "
            "memory for each rank while a checkpoint is written"
        )
    return lines


def _is_followed(name, value, default, layout: RunLayout) -> bool:
    """Return True if a run in this layout does otherwise than the plan, which counts no overlap."""
    if name == "parallel.overlap":
        return value is not False and layout.copies > 1
    return value != default


def settings_of(layout: RunLayout, shape: Shape, software: Software) -> dict:
    """Return {"section.key": value} of a run in this layout, with the stages of this software."""
    stages = None
    if layout.pipeline > 1:
        stages = blocks_per_stage(shape, software, layout.num_stages, layout.tensor)
    flags = {
        "parallel.sequence_parallel": layout.is_sequence_parallel,
        "parallel.activation_checkpointing": layout.recomputation == "full",
    }
    return {
        **{f"mesh.{axis}": getattr(layout, axis) for axis in CHOSEN},
        "parallel.policy": layout.policy,
        "parallel.shard_ranks": layout.shard_ranks,
        "parallel.schedule": layout.schedule,
        "parallel.virtual_stages": layout.virtual,
        "parallel.blocks_per_stage": stages,
        "parallel.domain_grid": layout.domain_grid,
        "batch.sequences": layout.batch,
        "batch.micro_batch": layout.micro_batch,
        **flags,
    }
