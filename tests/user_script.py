"""A script of a user's own, which mypy must pass strictly and every rank can run.

It names everything in shardkit.__all__, as a user would; tests/pure/test_types.py.
"""

import tempfile
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import shardkit as sk
from shardkit.nn import ops

Floats = NDArray[np.float32]


class Surrogate(sk.nn.Module):
    """A module of one's own: layers, a parameter, a buffer, operators and methods of tensors."""

    def __init__(self, width: int = 8) -> None:
        self.up = sk.nn.Linear(4, width)
        self.norm = sk.nn.LayerNorm(width)
        self.scale = sk.nn.Parameter((width,), sk.nn.init.Fill(1.0))
        self.rest = sk.nn.ModuleList([Doubled(alpha=0.5), sk.nn.Linear(width, 1)])

    def forward(self, x: sk.nn.Tensor) -> sk.nn.Tensor:
        hidden = ops.gelu(self.up(x)) * self.scale + 1.0
        hidden = (hidden - hidden.mean(-1, keepdim=True)).tanh()
        for layer in self.rest:
            hidden = layer(hidden)
        return hidden.reshape(hidden.shape[0], 1)


class Doubled(sk.nn.ELU):
    """A layer with another result."""

    def forward(self, x: sk.nn.Tensor) -> sk.nn.Tensor:
        return super().forward(x=x) * 2.0


def mean_square(prediction: sk.nn.Tensor, y: Floats) -> sk.nn.Tensor:
    """Return a loss of one's own."""
    return (prediction - y).square().mean()


class LargestError(sk.Metric):
    """A metric of one's own."""

    def sums(self, prediction: Floats, y: Floats) -> NDArray[np.float64]:
        largest: NDArray[np.float64] = np.abs(prediction - y).sum(0, np.float64)
        return largest

    def value(self, sums: NDArray[np.float64]) -> float:
        return float(sums.max())


class Rows(sk.Samples):
    """Samples of one's own."""

    def __init__(self, count: int) -> None:
        self.x = np.linspace(-1, 1, 4 * count, dtype=np.float32).reshape(count, 4)

    def __len__(self) -> int:
        return len(self.x)

    def read(self, numbers: NDArray[np.int64]) -> tuple[Floats, Floats]:
        x = self.x[numbers]
        return x, x.sum(1, keepdims=True)

    def fingerprint(self) -> str:
        return f"{len(self.x)} rows"


class Noisy(Rows):
    """Samples that are drawn anew in each epoch."""

    def read(
        self, numbers: NDArray[np.int64], draw: sk.Draw | None = None
    ) -> tuple[Floats, Floats]:
        x, y = super().read(numbers)
        return (x if draw is None else x + draw.normal(4).astype(np.float32)), y


def noisy(x: Floats, y: Floats, draw: sk.Draw) -> tuple[Floats, Floats]:
    """Return a batch with noise on x."""
    return sk.transforms.noise(x, draw, 0.1), y


def changed(dataset: object) -> sk.Samples:
    """Return samples of a data set by number, mixed and with noise."""
    samples = sk.IndexedSamples(dataset, x="image", y="label")
    return sk.transforms.mixup(sk.transforms.Augmented(samples, noisy), alpha=0.4)


class Regression(sk.Task):
    """A task of one's own."""

    class Settings:
        width: int = 8

    metrics = {"largest": LargestError()}

    def make_model(self) -> sk.nn.Module:
        return sk.models.MLP([4, self.settings.task.width, 1], seed=self.settings.run.seed)

    def samples(self, part: str) -> sk.Samples:
        return Rows(32 if part == "training" else 8)


class Progress(sk.Callback):
    """A callback of one's own."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_step(self, step: int, loss: float) -> None:
        self.losses.append(loss)


def all_models() -> list[sk.nn.Module]:
    """Return a small one of each model."""
    return [
        sk.models.FNO(1, 1, (2, 2), width=4, layers=1),
        sk.models.GPT(16, 8, width=8, layers=1, heads=2, style="llama"),
        sk.models.LSTM(2, 1, width=4, layers=1),
        sk.models.MLP([4, 8, 1], activation="gelu", task="regression"),
        sk.models.MessagePassing(2, 1, [0, 1], [1, 0], width=4, steps=1),
        sk.models.ResNet(1, 2, (1,), width=4),
        sk.models.UNet(1, 1, width=4, depth=1, groups=2),
        sk.models.ViT(4, 2, 1, 2, width=8, depth=1, heads=2),
        Surrogate(),
    ]


def all_rules() -> list[sk.optim.Rule]:
    """Return one of each optimizer rule, with all kinds of learning rates."""
    return [
        sk.SGD(lr=0.1, momentum=0.9, nesterov=True),
        sk.Momentum(lr=sk.schedules.Constant(1e-2)),
        sk.Adam(lr=sk.schedules.Linear(1e-3, warmup_steps=2, decay_steps=10)),
        sk.AdamW(lr=sk.schedules.Cosine(1e-3, decay_steps=10), betas=(0.9, 0.95), weight_decay=0.1),
        sk.Lion(lr=lambda step: 1e-4 / (step + 1)),
        sk.Muon(lr=1e-2),
        sk.EMA(sk.AdamW(lr=1e-3), decay=0.9),
    ]


def batch(count: int = 4) -> tuple[Floats, Floats]:
    """Return x, y of samples."""
    return Rows(count).read(np.arange(count))


def configured(backend: sk.CommunicationBackend) -> sk.ShardingConfiguration:
    """Return a configuration with a group of parameters that has no weight decay."""
    return sk.ShardingConfiguration(
        backend,
        optimizer=sk.AdamW(lr=1e-2),
        loss=mean_square,
        max_gradient_norm=1.0,
        parameter_groups=(sk.ParameterGroup("*.bias", weight_decay=0.0),),
        micro_batches=1,
    )


def train(backend: sk.CommunicationBackend, folder: Path) -> float:
    """Train, save and load under several strategies; return the last loss."""
    config = configured(backend)
    model: sk.ShardedModel = sk.FSDPModel(Surrogate(), config)
    x, y = sk.split_batch(model.mesh, *batch(4 * backend.world_size))
    part: sk.SamplePart | None = sk.domain_part(model)
    assert part is None and len(sk.Rows(x, 1, 0, x.shape[1])) == len(x)
    loss = model.train(x, y)
    gradients = model.compute_gradients(x, y)
    model.apply_gradients(gradients, 0.01)
    shard: NDArray[np.float32] = model.local_parameter_shard
    whole: NDArray[np.float32] = model.gather_full_parameters()
    assert len(shard) <= len(whole) == model.parameter_count
    prediction = model.predict(x)
    assert prediction.shape == y.shape
    model.evaluate(x, y, metrics={"largest": LargestError()})
    evaluation = model.get_model_metadata()["evaluation"]
    assert evaluation["metrics"]["largest"] >= 0
    name: str = model.save_model(folder / "checkpoints")
    assert "step-" in name
    other = sk.DDPModel(Surrogate(), config)
    other.load_model(folder / "checkpoints", only="model")
    other.deserialize(model.serialize())
    stream = BytesIO() if backend.rank == 0 else None
    model.save_state(stream)
    copied = model.deep_copy()
    assert copied.with_parameters(whole).step_number == 0
    for each in (model, other, copied):
        each.close()
    return loss


def describe(model: sk.ShardedModel) -> str:
    """Return what a model says of itself on its mesh."""
    mesh: sk.Mesh = model.mesh
    group: sk.CommunicationBackend = mesh.group("data")
    return f"{mesh.describe()} {group.rank}/{group.world_size} {model.describe()}"


def strategies(backend: sk.CommunicationBackend) -> list[str]:
    """Return the description of every strategy that one rank can have."""
    config = sk.ShardingConfiguration.for_high_bandwidth(backend)
    mlp = sk.models.MLP([4, 8, 8, 1])
    models: list[sk.ShardedModel] = [
        sk.ZeRO1Model(mlp, config),
        sk.ZeRO2Model(Surrogate(), config),
        sk.ZeRO3Model(Surrogate(), config),
        sk.TensorParallelModel(sk.models.MLP([4, 8, 1]), config),
        sk.PipelineParallelModel(sk.models.MLP([4, 8, 1]), config),
        sk.HybridShardedModel(sk.models.MLP([4, 8, 1]), config, 1, 1, policy="zero2"),
    ]
    texts = [describe(model) for model in models]
    for model in models:
        model.close()
    return texts


OPTIMIZERS: tuple[type[sk.ShardedOptimizer], ...] = (
    sk.DDPOptimizer,
    sk.ZeRO1Optimizer,
    sk.ZeRO2Optimizer,
    sk.FSDPOptimizer,
    sk.PipelineParallelOptimizer,
    sk.TensorParallelOptimizer,
    sk.HybridShardedOptimizer,
)


def optimize(backend: sk.CommunicationBackend, kind: type[sk.ShardedOptimizer]) -> float:
    """Return the best figure of a search by epochs."""
    optimizer = kind(sk.AdamW(lr=1e-2), sk.ShardingConfiguration(backend))
    x, y = batch(8)
    given = sk.OptimizationInputData(
        x, y, x, y, initial_solution=sk.models.MLP([4, 8, 1]), epochs=1, batch_size=8
    )
    result: sk.OptimizationResult = optimizer.optimize(given, callbacks=[Progress()])
    validation: sk.EvaluationResult | None = result.validation_result
    assert validation is not None
    drift: sk.StateDrift = optimizer.synchronize_optimizer_state()
    print(validation.loss, drift)
    optimizer.close()
    return result.best_fitness_score


def verbs(backend: sk.CommunicationBackend) -> Floats:
    """Return a sum over the ranks, by the verbs that a user may call."""
    array = np.ones(3, np.float32)
    backend.all_reduce(array, sk.ReductionOperation.SUM)
    whole = np.empty(3 * backend.world_size, np.float32)
    backend.all_gather(array, whole)
    handle = backend.iall_reduce(array, sk.ReductionOperation.MAX)
    handle.wait()
    backend.barrier()
    names: list[str] | None = backend.gather_object(f"rank {backend.rank}")
    assert (names is None) == (backend.rank > 0)
    return array


def runs(folder: Path, backend: sk.CommunicationBackend) -> None:
    """Train a task, and a module on arrays."""
    settings = {"run.steps": 2, "batch.sequences": 8, "batch.micro_batch": 8}
    sk.Training(Regression, folder=folder / "task", settings=settings, backend=backend).run()
    training = sk.Training(
        Surrogate(),
        (batch(16), batch(8)),
        folder=folder / "module",
        settings=settings,
        loss=mean_square,
        metrics={"largest": LargestError()},
        callbacks=[Progress()],
        backend=backend,
    )
    training.run()
    training.predict(batch(8)[0], folder / "out.h5")


def ensemble(folder: Path, backend: sk.CommunicationBackend) -> dict[str, np.ndarray]:
    """Train two trials at a time, and predict with error bars."""
    seeds = [{"run.seed": seed, "run.steps": 2, "batch.sequences": 8} for seed in range(4)]
    several = sk.Ensemble(Regression, seeds, groups=2, folder=folder / "many", backend=backend)
    assert [trial.status for trial in several.run()] == ["finished"] * 4
    assert several.best.loss is not None
    return several.predict(batch(8)[0], folder / "spread.h5")


def files(folder: Path) -> None:
    """Write a module to files of other programs, read it, and load a checkpoint on one process."""
    sk.save_safetensors(Surrogate().finish(0), folder / "module.safetensors")
    sk.load_safetensors(Surrogate().finish(1), folder / "module.safetensors")
    model: sk.nn.Module = sk.load(folder / "checkpoints", Surrogate)
    assert model.predict(batch()[0]).shape == (4, 1)
    gpt = sk.models.GPT(16, 8, width=8, layers=1, heads=2, style="llama", lora_rank=2)
    sk.save_adapter(gpt, folder / "adapter")
    sk.load_adapter(gpt, folder / "adapter")


def measured(backend: sk.CommunicationBackend) -> tuple[float, ...]:
    """Return the seconds of each block."""
    return sk.measure_blocks(sk.models.MLP([4, 8, 1]), *batch(), backend)


def couple() -> float:
    """Feed a training and predict by it, on ranks that do both; MPI alone has such ranks."""
    with sk.coupled(buffer="latest", when_full="drop_oldest") as coupling:
        model = sk.FSDPModel(sk.models.MLP([4, 8, 1]), sk.ShardingConfiguration(coupling.backend))
        loss = 0.0
        coupling.put(x=np.ones(4, np.float32), y=np.ones(1, np.float32), time=0.5)
        for x, y in coupling.batches(model, coupling.backend.world_size):
            loss = model.train(x, y)
        coupling.publish(model)
        coupling.predict(np.ones((1, 4), np.float32))
    return loss


def classes() -> tuple[type[object], ...]:
    """Return what only some sites can start: MPI, elastic runs, and the table task."""
    return sk.MPICommunicationBackend, sk.ElasticTraining, sk.TableTask


ERRORS: tuple[type[Exception], ...] = (
    sk.AutogradError,
    sk.CheckpointError,
    sk.CommunicationError,
    sk.CommunicationTimeout,
    sk.ConfigurationError,
    sk.DeviceError,
    sk.FeatureError,
    sk.FileError,
    sk.LayoutError,
    sk.MeshError,
    sk.NonFiniteError,
    sk.OutOfMemoryError,
    sk.ScheduleError,
    sk.ShapeError,
    sk.ShardingError,
    sk.ShardkitError,
    sk.StopVoted,
    sk.ShardingWarning,
)


def on_a_rank(backend: sk.InMemoryCommunicationBackend) -> float:
    """Do all of it on one of several ranks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(backend.broadcast_object(name, 0))
        loss = train(backend, folder)
        verbs(backend)
        if backend.world_size == 1:
            strategies(backend)
            for kind in OPTIMIZERS:
                optimize(backend, kind)
            runs(folder, backend)
            files(folder)
            measured(backend)
        backend.barrier()
    return loss


def calls() -> list[float]:
    """Call modules with arrays: what a call returns has the type that forward() says."""
    x: Floats = np.ones((2, 4), np.float32)
    layer: sk.nn.Tensor = sk.nn.Linear(4, 1)(x)
    own = Surrogate()(x)
    ready = sk.models.MLP([4, 8, 1])(x)
    outputs, (hidden, cell) = sk.nn.LSTM(4, 8)(x[None])
    return [float(y.mean().item()) for y in (layer, own, ready, outputs, hidden, cell)]


def main() -> None:
    """Run on one rank and on two."""
    assert len(calls()) == 6
    assert len(all_models()) == 9 and len(all_rules()) == 7 and classes() and ERRORS
    losses: list[float] = sk.run_ranks(1, on_a_rank) + sk.run_ranks(2, on_a_rank)
    print(losses)


if __name__ == "__main__":
    main()
