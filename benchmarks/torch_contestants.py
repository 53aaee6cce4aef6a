"""PyTorch's side of a training race, on CPUs over gloo: alone, DDP, FSDP2, DTensor tensor parallel,
pipelining, and samples cut over ranks.

Each follows the tutorial of its technique: pytorch.org/tutorials, "DDP", "FSDP2 (fully_shard)",
"Tensor Parallel", "Pipeline Parallelism". Gradients of replicated parameters are counted once in
the norm that clips.
"""

import torch
import torch.distributed as dist
from contestants import CLIP_NORM, LEARNING_RATE, Problem, Sizes, Spec, blocks_of_stages
from domain_twins import cut
from science_twins import TWINS
from torch.nn.utils import clip_grad_norm_, get_total_norm
from twins import GPT, mean_loss


class Alone:
    """One rank: a module, a loss, an optimizer."""

    def __init__(self, spec: Spec, sizes: Sizes, weights: dict, rank: int):
        self.sizes = sizes
        self.rank = rank
        self.ranks = spec.ranks
        self.autocasts = spec.compute == "bfloat16"
        twin = self.twin(spec, weights)
        self.loss = getattr(twin, "loss", mean_loss)
        self.channels_last = spec.channels_last and channels_last_of(sizes)
        if self.channels_last:
            twin = twin.to(memory_format=self.channels_last)
        self.module = self.parallel(twin)
        if spec.compiled:
            self.module = torch.compile(self.module)
        self.parameters = list(self.module.parameters())
        self.optimizer = torch.optim.AdamW(
            self.groups(), lr=LEARNING_RATE, **({"fused": True} if spec.fused else {})
        )

    def twin(self, spec, weights):
        if isinstance(self.sizes, Problem):
            twin = self.sizes.made_by(TWINS.__getitem__)
        else:
            twin = GPT(self.sizes, spec.attention)
        twin.load_state_dict(weights)
        return twin

    def parallel(self, twin):
        return twin

    def groups(self) -> list:
        return self.parameters

    def batch(self, number):
        """Return this rank's rows of the global batch."""
        x, y = self.sizes.step_batch(number)
        part = slice(len(x) * self.rank // self.ranks, len(x) * (self.rank + 1) // self.ranks)
        x, y = torch.from_numpy(x[part]), torch.from_numpy(y[part])
        return x.contiguous(memory_format=self.channels_last) if self.channels_last else x, y

    def step(self, number: int) -> float:
        x, y = self.batch(number)
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(x, y)
        self.clip()
        self.optimizer.step()
        return loss

    def backward(self, x, y) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocasts):
            loss = self.loss(self.module(x), y)
        loss.backward()
        return loss.item()

    def clip(self):
        clip_grad_norm_(self.parameters, CLIP_NORM)

    def scale_to(self, norm: float):
        """Clip by a norm that is known."""
        factor = min(1.0, CLIP_NORM / (norm + 1e-6))
        for parameter in self.parameters:
            parameter.grad.mul_(factor)

    def facts(self) -> dict:
        return {}

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def channels_last_of(sizes):
    """Return the memory format of PyTorch with channels last, of grids in 2-D and 3-D."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return formats.get(len(sizes.x)) if isinstance(sizes, Problem) else None


class DDP(Alone):
    """torch.nn.parallel.DistributedDataParallel as it is by default."""

    def parallel(self, twin):
        return torch.nn.parallel.DistributedDataParallel(twin)


class Domain(DDP):
    """Each rank has its part of each sample; DDP averages over parts, which are even."""

    def twin(self, spec, weights):
        return cut(super().twin(spec, weights))

    def batch(self, number):
        x, y = self.sizes.step_batch(number)
        dim = 2 if isinstance(self.sizes, Problem) else 1
        own = [torch.from_numpy(each).chunk(self.ranks, dim)[self.rank] for each in (x, y)]
        memory_format = self.channels_last or torch.contiguous_format
        return own[0].contiguous(memory_format=memory_format), own[1].contiguous()


class FSDP2(Alone):
    """fully_shard on each block and on the whole, parameters let go after the forward."""

    def parallel(self, twin):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (self.ranks,))
        for block in twin.parts():
            fully_shard(block, mesh=mesh)
        return fully_shard(twin, mesh=mesh)


class Tensor(Alone):
    """parallelize_module: column and row parallel layers, a vocabulary-parallel embedding, head and
    loss.
    """

    def parallel(self, twin):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (self.ranks,))
        columns = ("attention.query", "attention.key", "attention.value", "mlp.up")
        for block in twin.blocks.values():
            plan = {name: ColwiseParallel() for name in columns} | {
                "attention.output": RowwiseParallel(),
                "mlp.down": RowwiseParallel(),
            }
            if hasattr(block.mlp, "gate"):
                plan["mlp.gate"] = ColwiseParallel()
            parallelize_module(block, mesh, plan)
        return parallelize_module(
            twin,
            mesh,
            {
                "embedding.tokens": RowwiseParallel(input_layouts=Replicate()),
                "head.output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
            },
        )

    def groups(self):
        """Return DTensors and plain tensors apart: one fused update takes one kind."""
        from torch.distributed.tensor import DTensor

        self.cut = [p for p in self.parameters if isinstance(p, DTensor)]
        self.plain = [p for p in self.parameters if not isinstance(p, DTensor)]
        return [{"params": self.cut}, {"params": self.plain}]

    def batch(self, number):
        return tuple(map(torch.from_numpy, self.sizes.step_batch(number)))

    def backward(self, x, y):
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.parallel import loss_parallel

        with loss_parallel():
            loss = mean_loss(self.module(x), y)
            loss.backward()
        return (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()

    def clip(self):
        of_cut = get_total_norm([p.grad for p in self.cut]).full_tensor()
        of_plain = get_total_norm([p.grad for p in self.plain])
        self.scale_to(float(of_cut**2 + of_plain**2) ** 0.5)


class Pipeline(Alone):
    """Stages of torch.distributed.pipelining: one per rank under Schedule1F1B, two under
    ScheduleZBVZeroBubble.
    """

    def twin(self, spec, weights):
        of_stage = blocks_of_stages(spec, self.sizes)
        self.num_stages = len(of_stage)
        self.stages = (
            {self.rank: None}
            if spec.schedule == "1f1b"
            else {self.rank: None, self.num_stages - 1 - self.rank: None}
        )
        for stage in self.stages:
            blocks = range(sum(of_stage[:stage]), sum(of_stage[: stage + 1]))
            part = GPT(
                self.sizes,
                spec.attention,
                blocks=blocks,
                first=stage == 0,
                last=stage == self.num_stages - 1,
            )
            part.load_state_dict({name: weights[name] for name in part.state_dict()})
            self.stages[stage] = part
        return torch.nn.ModuleList(self.stages.values())

    def parallel(self, twin):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble

        stages = [
            PipelineStage(part, stage, self.num_stages, torch.device("cpu"))
            for stage, part in self.stages.items()
        ]
        options = {"n_microbatches": self.sizes.micro_batches, "loss_fn": mean_loss}
        self.schedule = (
            Schedule1F1B(*stages, **options)
            if len(stages) == 1
            else ScheduleZBVZeroBubble(stages, **options)
        )
        return twin

    def batch(self, number):
        return tuple(map(torch.from_numpy, self.sizes.step_batch(number)))

    def backward(self, x, y):
        losses = []
        is_last = self.num_stages - 1 in self.stages
        self.schedule.step(
            *([x] if 0 in self.stages else []),
            **({"target": y, "losses": losses} if is_last else {}),
        )
        return torch.stack(losses).mean().item() if losses else None

    def clip(self):
        square = get_total_norm([p.grad for p in self.parameters]) ** 2
        dist.all_reduce(square)
        self.scale_to(float(square) ** 0.5)


STRATEGIES = {
    **{"ddp": DDP, "fsdp": FSDP2, "tensor": Tensor},
    **{"pipeline": Pipeline, "domain": Domain},
}


def make_torch_contestant(spec: Spec, sizes: Sizes, weights_path: str, rank: int) -> Alone:
    """Return the PyTorch contestant of this rank; several meet through MASTER_ADDR, as under
    torchrun.
    """
    import numpy

    torch.set_num_threads(1)
    weights = {name: torch.from_numpy(array) for name, array in numpy.load(weights_path).items()}
    if spec.ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=spec.ranks)
    return (STRATEGIES[spec.strategy] if spec.ranks > 1 else Alone)(spec, sizes, weights, rank)
