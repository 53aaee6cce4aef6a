"""What trains on NumPy trains on CuPy, to rounding in float64: every policy, schedule and kind of
parallelism.

Largest difference over the largest element: gradients of each step, parameters, losses and norms
within TOLERANCE.
"""

from functools import cache

import numpy
import pytest
from builders import small_gpt, token_batch, train
from called_models import Odd, UNetLike, batch
from half_floats import BFLOAT16
from hybrids import gpt, hybrid, layers_for, trained

import shardkit as sk
from shardkit.nn import ops
from shardkit.testing.parallel import compilation_of, skips_of

TOLERANCE = 1e-11
# (pipeline, data, tensor), policy, schedule, settings
RUNS = {
    "ddp": ((1, 1, 1), "ddp", "1f1b", {}),
    "zero1": ((1, 3, 1), "zero1", "1f1b", {}),
    "zero2": ((1, 2, 1), "zero2", "1f1b", {"activation_checkpointing": True}),
    "fsdp": ((1, 4, 1), "fsdp", "1f1b", {}),
    "hsdp": ((1, 4, 1), "hsdp", "1f1b", {}),
    "not deterministic": ((1, 3, 1), "fsdp", "1f1b", {"deterministic": False}),
    "tensor": ((1, 1, 3), "ddp", "1f1b", {}),
    "sequence": ((1, 1, 2), "fsdp", "1f1b", {"sequence_parallel": True}),
    "gpipe": ((2, 1, 1), "fsdp", "gpipe", {}),
    "1f1b": ((3, 1, 1), "zero1", "1f1b", {}),
    "interleaved": ((2, 1, 1), "ddp", "interleaved", {}),
    "zb-h1": ((2, 2, 1), "zero2", "zb-h1", {}),
    "zb-v": ((2, 1, 2), "fsdp", "zb-v", {}),
    "all three": ((2, 2, 2), "fsdp", "1f1b", {"sequence_parallel": True}),
}
FORMS = {
    "llama": {"style": "llama", "heads": 12, "kv_heads": 2},
    "tied": {"tied": True},
    "dropout": {"dropout": 0.2},
}
OF_FORMS = {
    "llama": ("sequence", "zb-v"),
    "tied": ("gpipe", "fsdp"),
    "dropout": ("sequence", "zero2"),
}


@cache
def on_cpu(layers, form=None):
    return trained(
        (1, 1, 1), "ddp", "gpipe", steps=2, model=lambda: gpt(layers, **FORMS.get(form, {}))
    )


def relative(got, wanted):
    return numpy.abs(got - wanted).max() / numpy.abs(wanted).max()


def check(name, form=None):
    mesh, policy, schedule, settings = RUNS[name]
    layers = layers_for(mesh[0], schedule)
    got = trained(
        mesh,
        policy,
        schedule,
        steps=2,
        model=lambda: gpt(layers, **FORMS.get(form, {})),
        device="cuda",
        **settings,
    )
    wanted = on_cpu(layers, form)
    numpy.testing.assert_allclose(got.losses, wanted.losses, rtol=TOLERANCE)
    numpy.testing.assert_allclose(got.norms, wanted.norms, rtol=TOLERANCE)
    for mine, on_host in zip(got.gradients, wanted.gradients, strict=True):
        assert relative(mine, on_host) < TOLERANCE
    assert relative(got.parameters, wanted.parameters) < TOLERANCE


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.thorough
def test_gradients_and_parameters_are_those_of_the_cpu(gpu, name):
    check(name)


@pytest.mark.parametrize(
    "form, name", [(form, name) for form, names in OF_FORMS.items() for name in names]
)
@pytest.mark.thorough
def test_every_form_of_model_follows_the_cpu(gpu, form, name):
    check(name, form)


@pytest.mark.emulated
@pytest.mark.parametrize("changes", [{"dropout": 0.2, "tied": True}, {"style": "llama"}], ids=str)
@pytest.mark.thorough
def test_the_kernels_in_cuda_train_as_the_cpu_does(gpu, changes):
    """float32 and half precision have tolerances of their own (test_gpu_kernels); here all kernels
    work together.
    """

    def run(device):
        def on_rank(backend):
            model, losses = train(
                "FSDP",
                backend,
                1,
                samples=4,
                model=small_gpt(dtype="float64", **changes),
                device=device,
            )
            return losses, model.gather_full_parameters()

        return sk.run_ranks(2, on_rank)[0]

    (losses, parameters), (gpu_losses, gpu_parameters) = run("cpu"), run("cuda")
    numpy.testing.assert_allclose(gpu_losses, losses, rtol=1e-12)
    assert relative(gpu_parameters, parameters) < 1e-10


@pytest.mark.parametrize("make", [UNetLike, Odd], ids=["unet", "odd"])
@pytest.mark.thorough
def test_modules_that_are_gathered_as_they_are_called_follow_the_cpu(gpu, make):
    def run(device):
        def on_rank(backend):
            config = sk.ShardingConfiguration(
                backend, minimum_parameter_group_size=256, max_gradient_norm=0.5, device=device
            )
            model = sk.FSDPModel(make("float64"), config)
            for step in range(2):
                model.train(*sk.split_batch(model.mesh, *batch(step, dtype="float64")))
            reason = compilation_of(model).reason
            return (
                model.gather_full_parameters(),
                model.predict(batch(9, dtype="float64")[0]),
                reason,
            )

        return sk.run_ranks(3, on_rank)[0]

    (parameters, prediction, _), (on_gpu, predicted_on_gpu, reason) = run("cpu"), run("cuda")
    assert relative(on_gpu, parameters) < TOLERANCE
    assert relative(predicted_on_gpu, prediction) < TOLERANCE
    assert "when they are called" in reason or "it has buffers" in reason


@pytest.mark.thorough
def test_the_bits_are_the_same_on_every_data_and_pipeline_mesh(gpu):
    def bits(mesh, schedule="1f1b"):
        run = trained(
            mesh,
            "fsdp",
            schedule,
            steps=2,
            model=lambda: gpt(2),
            micro_batches=4 // mesh[1],
            device="cuda",
        )
        return run.parameters.tobytes(), run.losses, run.norms

    serial = bits((1, 1, 1))
    others = {
        (1, 2, 1): "1f1b",
        (1, 4, 1): "1f1b",
        (2, 1, 1): "zb-h1",
        (2, 2, 1): "1f1b",
        (4, 1, 1): "gpipe",
    }
    for mesh, schedule in list(others.items())[: len(others) if gpu.is_real else 3]:
        assert bits(mesh, schedule) == serial, mesh


@pytest.mark.parametrize(
    "settings", [{"max_gradient_norm": None}, {"gradient_compression": "float16"}], ids=str
)
@pytest.mark.thorough
def test_steps_that_do_not_clip_or_compress_follow_the_cpu(gpu, settings):
    """Sums of half floats: 11 bits, so a thousandth of the largest parameter change."""

    def run(device):
        def on_rank(backend):
            model, losses = train(
                "ZeRO-2", backend, 2, device=device, optimizer=sk.Momentum(lr=0.1), **settings
            )
            return losses, model.gather_full_parameters()

        return sk.run_ranks(2, on_rank)[0]

    (losses, parameters), (gpu_losses, gpu_parameters) = run("cpu"), run("cuda")
    numpy.testing.assert_allclose(gpu_losses, losses, rtol=1e-5)
    numpy.testing.assert_allclose(gpu_parameters, parameters, atol=1e-6)


@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize("mesh", [(1, 2, 1), (2, 1, 1)], ids=str)
@pytest.mark.thorough
def test_a_bad_loss_on_one_rank_skips_the_step_on_all(gpu, mesh, clip):
    """The losses are judged on the GPU, before the host knows them: gradients are good here."""

    def on_rank(backend):
        def loss(prediction, y):
            is_bad = backend.rank == 1 and model.step_number == 1
            return ops.cross_entropy(prediction, y) + (numpy.inf if is_bad else 0.0)

        model = hybrid(
            *(backend, mesh),
            policy="ddp",
            model=small_gpt(layers=2),
            device="cuda",
            max_gradient_norm=clip,
            loss=loss,
        )
        skipped, losses = [], []
        for step in range(3):
            losses.append(model.train(*sk.split_batch(model.mesh, *token_batch(step, 4))))
            skipped.append(skips_of(model).last)
        return losses, skipped

    for losses, skipped in sk.run_ranks(2, on_rank):
        assert numpy.isfinite(losses).tolist() == [True, False, True]
        assert skipped[0] is skipped[2] is None and skipped[1].ranks == (1,)


@cache
def losses_of_three_steps(device, **settings):
    return sk.run_ranks(
        2,
        lambda backend: train("FSDP", backend, 3, device=device, micro_batch=3, **settings)[1],
    )[0]


@pytest.mark.parametrize(
    "numerics, tolerance",
    [
        ({"matmul_precision": "tf32"}, 1e-4),
        ({"compute_dtype": "float16"}, 1e-4),
        ({"compute_dtype": "float16", "residual_dtype": "float32"}, 1e-4),
        pytest.param({"compute_dtype": "bfloat16"}, 1e-3, marks=BFLOAT16.marks),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_faster_arithmetic_follows_float32_on_the_cpu(gpu, numerics, tolerance):
    """Losses of three steps: half a last bit of what is rounded, averaged over 144 tokens."""
    got, wanted = losses_of_three_steps("cuda", **numerics), losses_of_three_steps("cpu")
    numpy.testing.assert_allclose(got, wanted, rtol=tolerance)


def everything_else(device):
    """What a sharded model can do besides train(): numbers that CPU and GPU must agree on."""

    def on_rank(backend):
        model, _ = train(
            "FSDP", backend, 1, model=small_gpt(dtype="float64"), device=device, micro_batch=3
        )
        x, y = sk.split_batch(model.mesh, *token_batch(7))
        told = {
            "predict": model.predict(x),
            "evaluate": model.evaluate(x, y),
            "gradients": model.compute_gradients(x, y),
            "local": model.local_parameter_shard,
        }
        model.apply_gradients(told["gradients"], learning_rate=0.1)
        told["applied"] = model.gather_full_parameters()
        told["copy"] = model.deep_copy().gather_full_parameters()
        model.set_parameters(2 * told["applied"])
        told["set"] = model.gather_full_parameters()
        told["state"] = (
            model.wrapped_model.state_dict()["head.norm.weight"] if backend.world_size == 1 else 0.0
        )
        return told

    return sk.run_ranks(2, on_rank)


@pytest.mark.thorough
def test_everything_else_that_a_model_does_agrees_with_the_cpu(gpu):
    for on_cpu, on_gpu in zip(everything_else("cpu"), everything_else("cuda")):
        for name, wanted in on_cpu.items():
            assert isinstance(on_gpu[name], (float, numpy.ndarray)), name
            numpy.testing.assert_allclose(on_gpu[name], wanted, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.thorough
def test_accumulated_steps_agree_with_the_cpu(gpu):
    def run(device):
        def on_rank(backend):
            model, _ = train(
                "ZeRO-2",
                backend,
                0,
                model=small_gpt(dtype="float64"),
                device=device,
                auto_synchronize_gradients=False,
            )
            for step in range(2):
                model.train(*sk.split_batch(model.mesh, *token_batch(step)))
            model.synchronize_gradients()
            model.step()
            return model.gather_full_parameters()

        return sk.run_ranks(2, on_rank)[0]

    numpy.testing.assert_allclose(run("cuda"), run("cpu"), rtol=1e-9, atol=1e-12)


def regression(device):
    """An MLP whose inactive features hold nonsense, and how much each of the others matters."""
    x = numpy.random.default_rng(0).standard_normal((64, 4))
    y = 2 * x[:, 1:2] + 0.5 * x[:, 3:4]

    def on_rank(backend):
        model = sk.FSDPModel(
            sk.models.MLP([4, 16, 1], dtype="float64"),
            sk.ShardingConfiguration(
                backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=16, device=device
            ),
        )
        model.set_active_feature_indices([1, 3])
        x[:, 0] = 1e9
        losses = [model.train(*sk.split_batch(model.mesh, x, y)) for _ in range(3)]
        return [*losses, *model.get_feature_importance(*sk.split_batch(model.mesh, x, y)).values()]

    return sk.run_ranks(2, on_rank)[0]


def test_features_matter_as_they_do_on_the_cpu(gpu):
    numpy.testing.assert_allclose(regression("cuda"), regression("cpu"), rtol=1e-9)


@pytest.mark.thorough
def test_an_optimizer_finds_what_it_finds_on_the_cpu(gpu):
    def run(device):
        def on_rank(backend):
            optimizer = sk.ZeRO2Optimizer(
                sk.AdamW(lr=1e-2),
                sk.ShardingConfiguration(backend, device=device),
                model=small_gpt(dtype="float64"),
            )
            given = sk.OptimizationInputData(
                *token_batch(0, 24), *token_batch(1, 10), epochs=2, batch_size=8
            )
            result = optimizer.optimize(given)
            return [
                *result.fitness_history,
                result.training_result.loss,
                result.validation_result.loss,
            ]

        return sk.run_ranks(2, on_rank)[0]

    numpy.testing.assert_allclose(run("cuda"), run("cpu"), rtol=1e-9)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.thorough
def test_generated_text_is_that_of_the_cpu(gpu, style, temperature):
    """Longer than the window, so that it slides."""

    def run(device):
        def on_rank(backend):
            model, _ = train(
                "DDP", backend, 1, model=small_gpt(style=style, dtype="float64"), device=device
            )
            return model.wrapped_model.generate(
                token_batch(0)[0][0, :5], 12, temperature=temperature, seed=3
            ).tolist()

        return sk.run_ranks(1, on_rank)[0]

    assert run("cuda") == run("cpu")


@pytest.mark.thorough
def test_fifty_steps_in_float32_have_the_losses_of_the_cpu(gpu):
    """Rounding is what differs: 1e-4, relative. Twenty steps on the stand-in."""

    def losses(device):
        def on_rank(backend):
            model, _ = train("FSDP", backend, 0, samples=4, model=small_gpt(), device=device)
            return [model.train(*token_batch(0, 4)) for _ in range(50 if gpu.is_real else 20)]

        return sk.run_ranks(1, on_rank)[0]

    on_cpu, on_gpu = losses("cpu"), losses("cuda")
    assert on_cpu[-1] < 0.5 * on_cpu[0]
    numpy.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-4)
