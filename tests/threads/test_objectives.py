"""Two networks with two losses and two rules in one loop, as PyTorch trains them, on any mesh."""

import json
from functools import cache

import numpy
import pytest
from torch_or_skip import torch

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops
from shardkit.testing.parallel import loss_parts_of, skips_of

RATE, DISCRIMINATOR_RATE, CLIP, STEPS = 0.01, 0.1, 0.05, 6


def network(*widths):
    enter, inner, leave = widths
    first = nn.Linear(enter, inner, dtype="float64")
    return nn.Sequential(first, nn.Tanh(), nn.Linear(inner, leave, dtype="float64"))


class GAN(nn.Module):
    def __init__(self):
        self.generator, self.discriminator = network(3, 8, 2), network(2, 8, 1)

    def forward(self, x):
        noise, real = x
        found = {"fake": self.discriminator(self.generator(noise))}
        if nn.current_objective() != "generator":
            found["real"] = self.discriminator(real)
        return found


class Step(nn.Module):
    def __init__(self, layer, is_last=False):
        self.layer, self.is_last = layer, is_last

    def forward(self, x):
        found = self.layer(x)
        return found if self.is_last else ops.tanh(found)


class Beside(Step):
    """A step of the generator, which hands on what is real."""

    def forward(self, x):
        return super().forward(x[0]), x[1]


class Pair(Step):
    """A step of the discriminator, on both."""

    def forward(self, x):
        return tuple(super(Pair, self).forward(each) for each in x)


class Chain(nn.Module):
    """The same as blocks, which a pipeline cuts."""

    def __init__(self):
        parts = {"generator": (Beside, (3, 8, 2)), "discriminator": (Pair, (2, 8, 1))}
        for name, (kind, (enter, inner, leave)) in parts.items():
            first = kind(nn.Linear(enter, inner, dtype="float64"))
            last = kind(nn.Linear(inner, leave, dtype="float64"), is_last=True)
            setattr(self, name, nn.ModuleList([first, last]))

    def blocks(self):
        names = "generator", "discriminator"
        return [(f"{n}.{i}", b) for n in names for i, b in enumerate(getattr(self, n))]


def loss_d(found, y):
    fake, real = found.values() if isinstance(found, dict) else found
    return {"fake": ops.softplus(fake).mean(), "real": ops.softplus(-real).mean()}


def loss_g(found, y):
    return ops.softplus(-(found["fake"] if isinstance(found, dict) else found[0])).mean()


BOTH = {"discriminator": loss_d, "generator": loss_g}


def batch(step):
    numbers = numpy.random.default_rng(step)
    return (numbers.normal(size=(24, 3)), numbers.normal(size=(24, 2)) + 1), numpy.zeros(24)


def sharded(backend, maker=sk.DDPModel, module=GAN, together=False, num_parts=12, **settings):
    losses = {"discriminator": loss_d, "generator": loss_g}
    other = sk.SGD(lr=DISCRIMINATOR_RATE, momentum=0.9)
    ranks = backend.world_size // settings.pop("share", 1)
    chosen = {
        "optimizer": sk.EMA(sk.Adam(lr=RATE), 0.5),
        "parameter_groups": (sk.ParameterGroup("discriminator.*", rule=other),),
        "loss": nn.Objectives(losses, together=together),
        "micro_batches": num_parts // ranks,
        "minimum_parameter_group_size": 16,
        "max_gradient_norm": CLIP,
    }
    return maker(module(), sk.ShardingConfiguration(backend, **chosen | settings))


def part(model, step):
    return sk.split_batch(model.mesh, *batch(step))


def result(model, losses):
    with model.with_averaged_parameters():
        averaged = model.gather_full_parameters()
    evaluated = model.evaluate(*part(model, 0))
    return losses, model.gather_full_parameters(), averaged, evaluated, loss_parts_of(model)


def trained(backend, *args, **settings):
    model = sharded(backend, *args, **settings)
    return result(model, [model.train(*part(model, step)) for step in range(STEPS)])


def is_same(one, other):
    known = {name: other[4][name] for name in one[4]}  # since the model was made
    assert one[0] == other[0] and one[4] == pytest.approx(known, rel=1e-12)
    assert one[3] == pytest.approx(other[3], rel=1e-12)
    return all(numpy.array_equal(a, b) for a, b in zip(one[1:3], other[1:3]))


# ---- as PyTorch does -----------------------------------------------------------------------------


class ByTorch:
    """The same GAN of PyTorch, with its two optimizers."""

    def __init__(self):
        named = GAN().finish(0).named_parameters()
        self.values = {
            n: torch.tensor(p.array.copy(), requires_grad=True) for n, p in named.items()
        }
        of_g, of_d = [self.of("generator"), self.of("discriminator")]
        self.rules = {
            "discriminator": torch.optim.SGD(of_d, lr=DISCRIMINATOR_RATE, momentum=0.9),
            "generator": torch.optim.Adam(of_g, lr=RATE),
        }

    def of(self, name):
        return [value for each, value in self.values.items() if each.startswith(name)]

    def net(self, name, x):
        w1, b1, w2, b2 = self.of(name)
        return torch.tanh(x @ w1.T + b1) @ w2.T + b2

    def loss(self, name, step):
        (noise, real), _ = batch(step)
        fake = self.net("discriminator", self.net("generator", torch.tensor(noise)))
        softplus = torch.nn.functional.softplus
        if name == "generator":
            return softplus(-fake).mean()
        return (
            softplus(fake).mean() + softplus(-self.net("discriminator", torch.tensor(real))).mean()
        )

    def gradients(self, name, step):
        loss = self.loss(name, step)
        return loss.item(), torch.autograd.grad(loss, self.of(name))

    def take(self, name, gradients):
        for value, gradient in zip(self.of(name), gradients):
            value.grad = gradient
        torch.nn.utils.clip_grad_norm_(self.of(name), CLIP)
        self.rules[name].step()

    def vector(self, values=None):
        values = self.values.values() if values is None else values
        return numpy.concatenate([value.detach().numpy().ravel() for value in values])


@cache
def by_torch(together):
    model, losses = ByTorch(), []
    for step in range(STEPS):
        found = {}
        for name in ("discriminator", "generator"):
            loss, gradients = model.gradients(name, step)
            found[name] = loss, gradients
            if not together:
                model.take(name, gradients)
        for name, (_, gradients) in found.items() if together else ():
            model.take(name, gradients)
        losses.append(sum(loss for loss, _ in found.values()))
    return losses, model.vector()


@pytest.mark.parametrize("ranks, maker", [(1, sk.DDPModel), (3, sk.FSDPModel)])
@pytest.mark.parametrize("together", [False, True])
def test_steps_are_those_of_pytorch_with_two_optimizers(together, ranks, maker):
    losses, parameters = by_torch(together)
    for told, found, *_ in sk.run_ranks(ranks, lambda b: trained(b, maker, together=together)):
        assert told == pytest.approx(losses, rel=1e-12)
        assert numpy.allclose(found, parameters, rtol=1e-12, atol=1e-14)


def test_each_part_has_the_gradient_of_its_own_loss_and_steps_with_it():
    def run(backend):
        model = sharded(backend, sk.ZeRO2Model, max_gradient_norm=None, optimizer=sk.SGD(0.1))
        gradients = model.compute_gradients(*part(model, 0))
        model.apply_gradients(gradients, 1e-3)
        return backend.gather_object(gradients, 0), model.gather_full_parameters()

    pieces, stepped = sk.run_ranks(2, run)[0]
    wanted = ByTorch()
    of_parts = [wanted.gradients(name, 0)[1] for name in ("generator", "discriminator")]
    gradient = wanted.vector([each for gradients in of_parts for each in gradients])
    assert numpy.allclose(wanted.vector() - 1e-3 * gradient, stepped, rtol=1e-12, atol=1e-14)
    found = numpy.concatenate(pieces)
    assert numpy.allclose(numpy.sort(found[found != 0]), numpy.sort(gradient), rtol=1e-10)


# ---- on every mesh -------------------------------------------------------------------------------


def hybrid(pipeline=1, tensor=1):
    return lambda module, config: sk.HybridShardedModel(module, config, pipeline, tensor)


MESHES = {  # ranks, maker, module, together, micro-batches, settings
    "zero1": (2, sk.ZeRO1Model, GAN, False, 8, {"overlap": True}),
    "fsdp of 4": (4, sk.FSDPModel, GAN, False, 8, {"activation_checkpointing": True}),
    "fsdp of 3": (3, sk.FSDPModel, GAN, True, 12, {}),
    "ddp of 3": (3, sk.DDPModel, GAN, False, 12, {}),
    "pipeline": (2, hybrid(2), Chain, False, 8, {"share": 2}),
    "pipeline of 4": (4, hybrid(4), Chain, True, 8, {"share": 4, "schedule": "zb-h1"}),
    "pipeline x fsdp": (4, hybrid(2), Chain, False, 8, {"share": 2, "schedule": "gpipe"}),
}


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("mesh", MESHES)
def test_steps_have_the_bits_of_one_rank(mesh):
    ranks, maker, module, together, num_parts, settings = MESHES[mesh]
    common = {"module": module, "together": together, "num_parts": num_parts}
    common |= {"minimum_parameter_group_size": 1, "max_gradient_norm": None}
    (alone,) = sk.run_ranks(1, lambda b: trained(b, **common))
    for found in sk.run_ranks(ranks, lambda b: trained(b, maker, **common, **settings)):
        assert is_same(found, alone)


def test_tensor_ranks_compute_the_same_to_rounding():
    plan = {"generator.0": "column", "generator.2": "row", "discriminator.0": "column"}
    plan["discriminator.2"] = "row"
    settings = {"tensor_plan": plan, "share": 2}
    found = sk.run_ranks(2, lambda b: trained(b, hybrid(1, 2), **settings))
    assert numpy.allclose(found[0][1], by_torch(False)[1], rtol=1e-10, atol=1e-12)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("only", [(), ("discriminator", "discriminator", "generator")])
@pytest.mark.parametrize("before, after", [((3, sk.FSDPModel), (1, sk.DDPModel))])
def test_one_checkpoint_goes_on_with_the_same_bits_on_another_layout(before, after, only, tmp_path):
    steps = only or [None] * STEPS

    def go(model, first, last):
        return [model.train(*part(model, s), only=steps[s]) for s in range(first, last)]

    def whole(backend):
        model = sharded(backend)
        return result(model, go(model, 0, len(steps)))

    def first(backend):
        model = sharded(backend, before[1])
        losses = go(model, 0, 2)
        model.save_model(tmp_path / "gan")
        return losses

    def second(backend):
        model = sharded(backend, after[1])
        model.load_model(tmp_path / "gan")
        assert model.step_number == 2
        other = model.deep_copy()
        return result(other, go(other, 2, len(steps)))

    losses = sk.run_ranks(before[0], first)[0]
    found = sk.run_ranks(after[0], second)[0]
    assert is_same((losses + found[0], *found[1:]), sk.run_ranks(1, whole)[0])


def test_state_that_begins_anew_is_young_for_each_objective(tmp_path):
    """After the same number of steps Adam's first update is about its rate, for each element."""

    def run(backend):
        rules = {"parameter_groups": (), "max_gradient_norm": None}
        model = sharded(backend, optimizer=sk.SGD(0.01), **rules)
        for step in range(5):
            model.train(*part(model, step), only="generator" if step == 3 else "discriminator")
        model.save_model(tmp_path / "gan")
        model = sharded(backend, optimizer=sk.Adam(lr=1e-3), **rules)
        with pytest.warns(UserWarning, match="was written under"):
            model.load_model(tmp_path / "gan")
        before = model.gather_full_parameters()
        model.train(*part(model, 0))
        return abs(model.gather_full_parameters() - before)

    (moved,) = sk.run_ranks(1, run)
    assert numpy.allclose(moved, 1e-3, rtol=1e-3)


# ---- loops by hand -------------------------------------------------------------------------------


def test_each_rule_counts_its_own_steps_as_optimizers_of_pytorch_do():
    names = ["discriminator", "discriminator", "generator", "discriminator", "generator"]

    def run(backend):
        model = sharded(backend, sk.ZeRO1Model)
        for step, name in enumerate(names):
            model.train(*part(model, step), only=name)
        return model.gather_full_parameters()

    wanted = ByTorch()
    for step, name in enumerate(names):
        wanted.take(name, wanted.gradients(name, step)[1])
    for found in sk.run_ranks(2, run):
        assert numpy.allclose(found, wanted.vector(), rtol=1e-12, atol=1e-14)


def test_one_objective_at_a_time_leaves_the_others_as_they_are():
    def run(backend):
        model = sharded(backend, sk.FSDPModel)
        before = model.gather_full_parameters()
        model.train(*part(model, 0), only="generator")
        return before, model.gather_full_parameters(), loss_parts_of(model)

    for before, after, told in sk.run_ranks(2, run):
        moved = before != after
        assert moved.any() and not moved[len(ByTorch().vector(ByTorch().of("generator"))) :].any()
        assert list(told) == ["generator"]


def test_accumulated_gradients_are_those_of_objectives_together():
    def run(backend):
        model = sharded(backend, sk.ZeRO2Model, auto_synchronize_gradients=False, num_parts=4)
        losses = []
        for step in range(STEPS):
            x, y = part(model, step)
            halves = [numpy.array_split(each, 2) for each in (*x, y)]
            losses.append([model.train((a, b), c) for a, b, c in zip(*halves)])
            model.synchronize_gradients()
            model.step()
        return [sum(each) / 2 for each in losses], model.gather_full_parameters()

    losses, parameters = by_torch(True)
    for told, found in sk.run_ranks(2, run):
        assert told == pytest.approx(losses, rel=1e-12)
        assert numpy.allclose(found, parameters, rtol=1e-12, atol=1e-14)


def test_a_loss_that_is_nan_skips_the_step_of_its_own_part():
    def run(backend):
        losses = {"discriminator": lambda p, y: loss_g(p, y) * numpy.nan, "generator": loss_g}
        model = sharded(backend, loss=nn.Objectives(losses))
        before = model.gather_full_parameters()
        model.train(*part(model, 0))
        return before != model.gather_full_parameters(), skips_of(model)

    for moved, skips in sk.run_ranks(2, run):
        size = len(ByTorch().vector(ByTorch().of("generator")))
        assert moved[:size].all() and not moved[size:].any()
        assert skips.total == 1 and "step 1 skipped" in str(skips.last)


@pytest.mark.parametrize("only", [None, "model"])
def test_steps_that_one_objective_skipped_are_steps_of_the_others_in_a_checkpoint(only, tmp_path):
    def run(backend):
        losses = BOTH | {"generator": lambda found, y: loss_g(found, y) + y.mean()}
        chosen = {"loss": nn.Objectives(losses), "parameter_groups": (), "max_gradient_norm": None}
        model = sharded(backend, sk.FSDPModel, optimizer=sk.Adam(lr=RATE), **chosen)
        x, y = part(model, 0)
        for _ in range(3):
            model.train(x, y + numpy.nan)
        model.save_model(tmp_path / "gan")
        other = sharded(backend, sk.ZeRO1Model, optimizer=sk.Adam(lr=RATE), **chosen)
        other.load_model(tmp_path / "gan", only=only)
        if only:
            model = sharded(backend, sk.FSDPModel, optimizer=sk.Adam(lr=RATE), **chosen)
            model.set_parameters(other.gather_full_parameters())
        for each in (model, other):
            each.train(x, y)
        return model.gather_full_parameters(), other.gather_full_parameters()

    for one, two in sk.run_ranks(2, run):
        assert numpy.array_equal(one, two)


# ---- refusals, on all ranks ----------------------------------------------------------------------

WRONG = {
    "no table": (lambda: nn.Objectives([loss_d]), "wanted {name: function"),
    "a Loss": (
        lambda: nn.Objectives({**BOTH, "generator": nn.MSELoss()}),
        "wanted {name: function",
    ),
    "a part that is missing": (
        lambda: nn.Objectives({"generator": loss_g}),
        "wanted those of what",
    ),
    "another name": (lambda: nn.Objectives({**BOTH, "critic": loss_d}), "wanted those of what"),
    "no bool": (lambda: nn.Objectives(BOTH, together=1), "wanted a bool"),
}


@pytest.mark.parametrize("what", WRONG)
def test_objectives_that_fit_no_model_are_refused(what):
    make, wanted = WRONG[what]

    def run(backend):
        with pytest.raises(sk.ConfigurationError, match=wanted) as caught:
            sharded(backend, loss=make())
        return str(caught.value).partition("\n")[0]

    assert len(set(sk.run_ranks(2, run))) == 1


CALLS = {
    "only of no objective": (
        lambda m, p: m.train(*p, only="critic"),
        {},
        "wanted discriminator, gen",
    ),
    "only of one loss": (
        lambda m, p: m.train(*p, only="a"),
        {"loss": loss_d},
        "no objective is chosen",
    ),
    "only, accumulated": (
        lambda m, p: m.train(*p, only="generator"),
        {"auto_synchronize_gradients": False},
        "no objective is chosen",
    ),
    "a loss": (lambda m, p: m.compute_gradients(*p, loss_d), {}, "wanted None: each objective"),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls_that_make_no_sense_are_refused_on_all_ranks(what):
    call, settings, wanted = CALLS[what]

    def run(backend):
        model = sharded(backend, **settings)
        with pytest.raises(sk.ConfigurationError, match=wanted):
            call(model, part(model, 0))
        if "only" not in what:
            return
        with pytest.raises(sk.ConfigurationError, match=f"rank 1: .*{wanted}"):
            call(model, part(model, 0)) if backend.rank else model.train(*part(model, 0))

    sk.run_ranks(2, run)


@pytest.mark.parametrize("one", ["discriminator", None])
def test_ranks_that_train_different_objectives_are_told(one):
    def run(backend):
        model = sharded(backend)
        with pytest.raises(sk.ShapeError, match="only = 'generator'; wanted .* the same only"):
            model.train(*part(model, 0), only=["generator", one][1 - backend.rank])
        assert not model.supports_compilation

    sk.run_ranks(2, run)


def test_objectives_that_share_parameters_are_refused_unless_these_are_frozen():
    class Sharing(Chain):
        def __init__(self):
            super().__init__()
            self.discriminator[0].layer.bias = self.generator[0].layer.bias

    def run(backend):
        with pytest.raises(
            sk.ConfigurationError, match="generator.0.layer.bias of generator in discriminator, too"
        ):
            sharded(backend, module=Sharing)
        model = sharded(backend, module=Sharing, frozen=("generator.0.layer.bias",))
        assert numpy.isfinite(model.train(*part(model, 0)))

    sk.run_ranks(2, run)


def test_domain_ranks_are_refused():
    def run(backend):
        with pytest.raises(sk.ConfigurationError, match="domain = 2; wanted 1"):
            sharded(backend, lambda m, c: sk.HybridShardedModel(m, c, domain_parallel_size=2))

    sk.run_ranks(2, run)


# ---- a run ---------------------------------------------------------------------------------------


class Adversaries(GAN):
    loss = nn.Objectives(BOTH)


@pytest.mark.thorough
def test_a_run_trains_validates_and_goes_on(tmp_path):
    (x, y), settings = batch(0), {"batch.sequences": 24, "run.report_every": 1}

    def run(folder, steps):
        def on_rank(backend):
            given = settings | {"run.steps": steps}
            training = sk.Training(
                Adversaries(), ((x, y), (x, y)), folder=folder, settings=given, backend=backend
            )
            training.run()
            return training.model.gather_full_parameters()

        return sk.run_ranks(2, on_rank)[0]

    run(tmp_path / "a", 2)
    assert numpy.array_equal(run(tmp_path / "a", 4), run(tmp_path / "b", 4))
    lines = (tmp_path / "b" / "metrics.jsonl").read_text().splitlines()
    names = {name for line in lines for name in json.loads(line)}
    assert names >= {"train_loss_generator", "train_loss_discriminator.real", "validation_loss"}
