"""LoRA under every policy and on every axis: the same bits, frozen weights, PyTorch's values."""

import numpy
import pytest
from builders import hsdp

import shardkit as sk
from shardkit import ConfigurationError, ShardingError, nn

STEPS, BATCH = 5, 8
IDS = numpy.random.default_rng(3).integers(0, 32, (BATCH, 13))
X, Y = IDS[:, :-1], IDS[:, 1:]
LAYERS = ("*.attention.query", "*.attention.output", "*.mlp.*")
KINDS = {
    "DDP": sk.DDPModel,
    "ZeRO-1": sk.ZeRO1Model,
    "ZeRO-2": sk.ZeRO2Model,
    "FSDP": sk.FSDPModel,
    "HSDP": hsdp,
    "pipeline": sk.PipelineParallelModel,
    "tensor": sk.TensorParallelModel,
    "hybrid": sk.HybridShardedModel,
}


def gpt(dtype="float64", style="llama"):
    settings = {"width": 16, "layers": 2, "heads": 4, "kv_heads": 2 if style == "llama" else None}
    return sk.models.GPT(32, 16, style=style, dtype=dtype, seed=2, **settings)


def adapted(dtype="float64", style="llama"):
    model = gpt(dtype, style)
    nn.apply_lora(model, *LAYERS, rank=3, alpha=6)
    rng = numpy.random.default_rng(5)
    for layer in model.named_parameters().values():
        if layer.name.endswith("lora_B"):  # as if it had been trained: lora_A has gradients at once
            layer.array = rng.normal(0, 0.1, layer.shape)
    return model


def trained(num_ranks, kind, dtype="float64", style="llama", sizes=(), **settings):
    """Return the parameters by name, and the loss, after some steps; as rank 0 has them."""

    def run(backend):
        module = adapted(dtype, style)
        config = sk.ShardingConfiguration(
            backend, optimizer=sk.AdamW(lr=1e-2), minimum_parameter_group_size=64, **settings
        )
        model = KINDS[kind](module, config, *sizes)
        part = sk.split_batch(model.mesh, X, Y)
        losses = [model.train(*part) for _ in range(STEPS)]
        vector, at, found = model.get_parameters(), 0, {}
        for name, parameter in adapted(dtype, style).named_parameters().items():
            found[name] = vector[at : at + parameter.size].reshape(parameter.shape)
            at += parameter.size
        return found, losses

    return sk.run_ranks(num_ranks, run)[0]


@pytest.fixture(scope="module")
def serial():
    return trained(1, "DDP")


RUNS = [
    (2, "DDP", {}),
    (3, "ZeRO-1", {}),
    (4, "ZeRO-2", {}),
    (2, "FSDP", {"micro_batches": 2}),
    (4, "FSDP", {"activation_checkpointing": True}),
    (2, "pipeline", {"micro_batches": 4}),
    (4, "pipeline", {"micro_batches": 4, "schedule": "zb-h1"}),
    (2, "tensor", {}),
    (4, "tensor", {}),
    (4, "hybrid", {"sizes": (1, 2)}),  # of pipeline and tensor; data 2
    (4, "hybrid", {"sizes": (2, 2), "micro_batches": 2}),
]


@pytest.mark.parametrize("num_ranks, kind, settings", RUNS)
@pytest.mark.thorough(but=3)
def test_lora_trains_as_on_one_rank_and_moves_nothing_else(num_ranks, kind, settings, serial):
    found, losses = trained(num_ranks, kind, **settings)
    numpy.testing.assert_allclose(losses, serial[1], rtol=1e-12)
    start = adapted().state_dict()
    for name, values in serial[0].items():
        numpy.testing.assert_allclose(found[name], values, rtol=1e-8, atol=1e-11, err_msg=name)
        assert numpy.array_equal(found[name], start[name]) == ("lora_" not in name), name


@pytest.mark.thorough
def test_the_bits_are_those_of_one_rank_on_data_and_pipeline_meshes():
    wanted, _ = trained(1, "DDP", "float32", micro_batches=8)
    for num_ranks, kind, micro_batches in [(2, "FSDP", 4), (2, "pipeline", 8), (4, "ZeRO-2", 2)]:
        found, _ = trained(num_ranks, kind, "float32", micro_batches=micro_batches)
        assert all(found[n].tobytes() == wanted[n].tobytes() for n in wanted), kind


def test_biases_and_layer_norms_of_gpt2_under_tensor_and_sequence_parallelism():
    wanted, losses = trained(1, "DDP", style="gpt2")
    for settings in ({}, {"sequence_parallel": True}):
        found, others = trained(2, "tensor", style="gpt2", **settings)
        numpy.testing.assert_allclose(others, losses, rtol=1e-12)
        for name in wanted:
            numpy.testing.assert_allclose(found[name], wanted[name], rtol=1e-8, atol=1e-11)


def test_values_and_gradients_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    rng = numpy.random.default_rng(0)
    model = nn.Sequential(
        nn.Linear(6, 5, dtype="float64"), nn.Tanh(), nn.Linear(5, 4, bias=False, dtype="float64")
    ).finish(1)
    assert nn.apply_lora(model, "*", rank=2, alpha=3) == ["0", "2"]
    for name, parameter in model.named_parameters().items():
        if name.endswith("lora_B"):
            parameter.array = rng.normal(size=parameter.shape)
    x = rng.normal(size=(7, 6))
    p = {n: torch.tensor(v, requires_grad="lora" in n) for n, v in model.state_dict().items()}

    def layer(at, x, bias=None):
        weight = p[f"{at}.weight"] + 1.5 * p[f"{at}.lora_B"] @ p[f"{at}.lora_A"]
        return torch.nn.functional.linear(x, weight, bias)

    wanted = layer(2, layer(0, torch.tensor(x), p["0.bias"]).tanh())
    y = model(nn.Tensor(x))
    numpy.testing.assert_allclose(y.array, wanted.detach().numpy(), rtol=1e-12)
    (y * y).sum().backward()
    (wanted * wanted).sum().backward()
    for name, parameter in model.named_parameters().items():
        if "lora" in name:
            numpy.testing.assert_allclose(parameter.grad, p[name].grad.numpy(), rtol=1e-10)
        else:
            assert parameter.grad is None


def test_a_new_update_changes_nothing_and_a_merged_one_stays():
    model = gpt()
    before = model.predict(X)
    names = nn.apply_lora(model, *LAYERS, rank=3)
    assert len(names) == 2 * 5 and (model.predict(X) == before).all()
    model = adapted()
    wanted = model.predict(X)
    assert abs(wanted - before).max() > 1e-4
    assert nn.merge_lora(model) == names
    assert list(model.named_parameters()) == list(gpt().named_parameters())
    numpy.testing.assert_allclose(model.predict(X), wanted, rtol=1e-9, atol=1e-12)


def test_initial_values_depend_on_names_and_the_seed_of_the_model_alone():
    late, early = gpt(), gpt()
    late.embedding.tokens.weight.array  # made before
    for model in (late, early):
        nn.apply_lora(model, *LAYERS, rank=3)
    name = "blocks.1.mlp.up.lora_A"
    values = early.state_dict()[name]
    assert (late.state_dict()[name] == values).all()
    assert abs(values).max() <= 0.25 and values.std() > 0.1  # +-1 / sqrt(16)


@pytest.mark.thorough
def test_a_checkpoint_of_the_plain_model_opens_and_one_with_updates_under_any_layout(tmp_path):
    def save(backend):
        config = sk.ShardingConfiguration(backend)
        sk.FSDPModel(gpt(), config).save_model(tmp_path / "plain")

    def go_on(backend, kind, first):
        config = sk.ShardingConfiguration(backend, optimizer=sk.Adam(lr=1e-2))
        model = KINDS[kind](adapted(), config)
        if first:
            model.load_model(tmp_path / "plain", only="model", strict=False)
        else:
            model.load_model(tmp_path / "lora")
        part = sk.split_batch(model.mesh, X, Y)
        losses = [model.train(*part) for _ in range(2)]
        if first:
            model.save_model(tmp_path / "lora")
            losses = [model.train(*part) for _ in range(2)]
        return losses

    def from_files(backend):
        """Updates keep their initial values, where the rest awaits its own."""
        model = sk.models.GPT.from_checkpoint(tmp_path / "plain")
        nn.apply_lora(model, *LAYERS)
        sharded = sk.FSDPModel(model, sk.ShardingConfiguration(backend))
        sharded.load_model(tmp_path / "plain", only="model", strict=False)
        return sharded.predict(X)

    sk.run_ranks(2, save)
    assert (sk.run_ranks(2, from_files)[0] == gpt().predict(X)).all()
    wanted = sk.run_ranks(2, lambda backend: go_on(backend, "FSDP", True))[0]
    for num_ranks, kind in ((1, "DDP"), (3, "ZeRO-2"), (2, "pipeline"), (2, "tensor")):
        got = sk.run_ranks(num_ranks, lambda backend: go_on(backend, kind, False))[0]
        numpy.testing.assert_allclose(got, wanted, rtol=1e-10)


def test_what_cannot_be_adapted_is_refused_and_nothing_has_changed():
    model = gpt()
    for call, message in [
        (lambda: nn.apply_lora(model), "without a pattern"),
        (lambda: nn.apply_lora(model, "*.querry"), "did you mean blocks.0.attention.query"),
        (lambda: nn.apply_lora(model, "*.attention_norm"), "matches no linear layer"),
        (lambda: nn.apply_lora(model, "*", rank=0), "rank = 0"),
        (lambda: nn.apply_lora(model, "*", alpha=-1), "alpha = -1"),
        (lambda: nn.merge_lora(model), "without LoRA"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            call()
    assert all(p.requires_grad for p in model.parameters())
    tied = sk.models.GPT(32, 16, width=16, layers=1, heads=2, tied=True)
    with pytest.raises(ConfigurationError, match="head.output is tied"):
        nn.apply_lora(tied, "*")
    nn.apply_lora(model, "*.query")
    with pytest.raises(ConfigurationError, match="has an update already"):
        nn.apply_lora(model, "*.attention.*")

    def after_sharding(backend):
        plain = gpt()
        sk.DDPModel(plain, sk.ShardingConfiguration(backend))
        with pytest.raises(ShardingError, match="belongs to a sharded"):
            nn.apply_lora(plain, "*.query")
        head = gpt()
        nn.apply_lora(head, "head.output")
        with pytest.raises(ShardingError, match="LoRALinear, which cannot be vocabulary"):
            sk.TensorParallelModel(head, sk.ShardingConfiguration(backend))

    sk.run_ranks(2, after_sharding)
