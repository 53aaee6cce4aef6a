"""The contestants of a training race: shardkit and PyTorch, each as it is meant to be used, on the
same model and batches.

Each class makes its model from Sizes and the common weights, and has one method: step(number) ->
mean loss of this rank's part of the batch, after one whole optimization step (AdamW, gradients
clipped to norm 1).
"""

import importlib
import json
import os
from dataclasses import asdict, dataclass
from functools import partial

import numpy
from problems import CUT, PROBLEMS, Problem

LEARNING_RATE = 3e-4
CLIP_NORM = 1.0
SHARD_RANKS = 2  # of hsdp


@dataclass(frozen=True)
class Sizes:
    """A model, its batch, and how a pipeline cuts them; the same for every contender."""

    name: str
    vocabulary: int
    width: int
    heads: int
    layers: int
    sequence: int
    batch: int  # sequences of the global batch
    style: str = "gpt2"
    micro_batches: int = (
        4  # of the pipeline contenders; the others compute their part of the batch at once
    )
    first_stage_blocks: int = 0  # transformer blocks of the first of two pipeline stages
    # of each of the four stages of a pipeline in the shape of a V: 0 and 3 on rank 0
    blocks_of_v: tuple = ()

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.batch * self.sequence

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def our_model(self):
        return shardkit_gpt(self)

    def step_batch(self, number: int):
        return token_batch(self, number)


def sizes_from(text: str) -> "Sizes | Problem":
    """Return what to_json wrote."""
    fields = json.loads(text)
    return (PROBLEMS | CUT)[fields["problem"]] if "problem" in fields else Sizes(**fields)


@dataclass(frozen=True)
class Spec:
    """Who runs, on how many ranks.

    library    "shardkit" or "torch"
    strategy   shardkit: ddp, zero1, zero2, fsdp, hsdp, tensor, pipeline, domain; torch: the same
               without zero1, zero2, hsdp
    schedule   of a pipeline: 1f1b, zb-v; shardkit: also zb-h1
    compiled   torch only: torch.compile
    blas       shardkit only: "numpy", "mkl" or "onednn"; PyTorch's wheels hold the last two
    compute    "float32", or "bfloat16" from float32 masters: compute_dtype; torch.autocast
    attention, fused   torch only: form of attention, fused AdamW instead of the default
    channels_last      torch only: the form of grids in memory
    layout     shardkit only: arguments of shardkit.plan.RunLayout, instead of a strategy
    """

    name: str
    library: str
    ranks: int = 1
    strategy: str = "ddp"
    schedule: str = "1f1b"
    attention: str = "eager"
    fused: bool = False
    channels_last: bool = False
    compiled: bool = False
    blas: str = "numpy"
    compute: str = "float32"
    layout: dict | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def blocks_of_stages(spec: Spec, sizes: Sizes) -> tuple[int, ...]:
    """Return the transformer blocks of each pipeline stage, the same for both libraries."""
    first = sizes.first_stage_blocks
    return sizes.blocks_of_v if spec.schedule == "zb-v" else (first, sizes.layers - first)


def token_batch(sizes, number: int):
    """Return the global batch of a step: x, y [batch, sequence] int64.

    It depends on the number of the step alone.
    """
    tokens = numpy.random.default_rng(number).integers(
        0, sizes.vocabulary, (sizes.batch, sizes.sequence + 1)
    )
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def import_library(spec: Spec) -> None:
    """Load what this contestant runs on. The other library stays away: its memory would be
    counted.
    """
    importlib.import_module("shardkit" if spec.library == "shardkit" else "torch_contestants")


def make_contestant(spec: Spec, sizes, weights_path: str, rank: int):
    """Return the contestant of this rank."""
    if spec.library == "shardkit":
        return Shardkit(spec, sizes)
    from torch_contestants import make_torch_contestant

    return make_torch_contestant(spec, sizes, weights_path, rank)


class Shardkit:
    """shardkit; its weights follow from the seed, and the others are given the same."""

    def __init__(self, spec: Spec, sizes):
        import shardkit as sk
        from shardkit.plan import RunLayout

        models = {
            "ddp": sk.DDPModel,
            "zero1": sk.ZeRO1Model,
            "zero2": sk.ZeRO2Model,
            "fsdp": sk.FSDPModel,
            "hsdp": partial(sk.HybridShardedModel, policy="hsdp"),
            "tensor": sk.TensorParallelModel,
            "pipeline": sk.PipelineParallelModel,
            "domain": partial(sk.HybridShardedModel, policy="ddp", domain_parallel_size=spec.ranks),
        }
        self.backend = sk.MPICommunicationBackend()
        self.spec = spec
        self.sizes = sizes
        self.split_batch = sk.split_batch
        if spec.layout is not None:
            self.model = self._in_layout(sk, RunLayout(**spec.layout))
        else:
            config = self._configuration(
                sk,
                blas=spec.blas,
                compute_dtype=spec.compute,
                **(self._pipeline_options() if spec.strategy == "pipeline" else {}),
                **({"shard_ranks": SHARD_RANKS} if spec.strategy == "hsdp" else {}),
            )
            self.model = models[spec.strategy](sizes.our_model(), config)
        self._settle()

    def _configuration(self, sk, **settings):
        return sk.ShardingConfiguration(
            self.backend,
            optimizer=sk.AdamW(lr=LEARNING_RATE),
            max_gradient_norm=CLIP_NORM,
            **settings,
        )

    def _settle(self) -> None:
        """Make the first calls of each group, which ranks compare with each other: a long run has
        them behind it.
        """
        from shardkit.comm.mpi.comparing import COMPARED_CALLS

        mesh = self.model.mesh
        for group in (mesh.world, *map(mesh.group, mesh.shape.order)):
            for _ in range(COMPARED_CALLS):
                group.barrier()

    def _pipeline_options(self) -> dict:
        options = {"micro_batches": self.sizes.micro_batches, "schedule": self.spec.schedule}
        if self.spec.ranks > 2:  # than the sizes have a cut for: as the library balances it
            return options
        of_stage = list(blocks_of_stages(self.spec, self.sizes))
        of_stage[0] += 1  # the embedding
        of_stage[-1] += 1  # the head
        return {
            **options,
            "virtual_stages": len(of_stage) // self.spec.ranks,
            "blocks_per_stage": tuple(of_stage),
        }

    def _in_layout(self, sk, layout):
        config = self._configuration(
            sk,
            micro_batches=layout.micro_batches,
            schedule=layout.schedule,
            virtual_stages=layout.virtual,
            sequence_parallel=layout.is_sequence_parallel,
            activation_checkpointing=layout.recomputation == "full",
        )
        return sk.HybridShardedModel(
            shardkit_gpt(self.sizes),
            config,
            layout.pipeline,
            layout.tensor,
            layout.data,
            policy=layout.policy,
        )

    def step(self, number: int) -> float:
        return self.model.train(*self.split_batch(self.model.mesh, *self.sizes.step_batch(number)))

    def facts(self) -> dict:
        """Return the bytes on this rank that the library itself accounts for."""
        about = self.model.get_model_metadata()
        kept = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "peak_bytes")
        return {key: about[key] for key in kept}

    def close(self) -> None:
        self.model.close()
        self.backend.shutdown()


def shardkit_gpt(sizes):
    """Return the unsharded model, seed 0."""
    import shardkit as sk

    return sk.models.GPT(
        sizes.vocabulary,
        sizes.sequence,
        width=sizes.width,
        layers=sizes.layers,
        heads=sizes.heads,
        style=sizes.style,
    )


def write_weights(sizes, path: str) -> int | None:
    """Write the common initial weights; returns num_flops_per_token, of a GPT."""
    model = sizes.our_model()
    numpy.savez(path, **model.state_dict())
    return getattr(model, "num_flops_per_token", None)


def bind(rank: int) -> None:
    """Run on one core from now on, if there are as many as ranks; more ranks than cores are left to
    the system.
    """
    cores = sorted(os.sched_getaffinity(0))
    if rank < len(cores):
        os.sched_setaffinity(0, {cores[rank]})
