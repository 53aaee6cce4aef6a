"""model.compile() on a GPU: steps replayed as CUDA graphs have the bits of plain ones, and what
cannot be captured is told.
"""

import warnings

import numpy
import pytest
from builders import small_gpt, token_batch
from hybrids import hybrid
from trace_rules import read_trace, threads_of

import shardkit as sk
from shardkit import ShapeError, ShardingError
from shardkit.testing.gpu import cuda_work
from shardkit.testing.parallel import pools_of, program_of, runtime_of, units_of

STEPS = 6  # plain, captured, compared, replayed three times
FSDP = (1, 2, 1), {"policy": "fsdp"}


def layers(*between):
    """A small model, with these layers in the middle."""
    return sk.nn.Sequential(
        sk.nn.Linear(4, 6), *between, sk.nn.Linear(6, 6), sk.nn.Linear(6, 6), sk.nn.Linear(6, 2)
    )


def work(model, step):
    """Train on numbers of this step; the loss."""
    numbers = numpy.random.default_rng(step)
    x, y = [numbers.normal(size=(12, width)).astype("f4") for width in (4, 2)]
    return model.train(*sk.split_batch(model.mesh, x, y))


def curve(mesh, settings, *, is_compiled, model=layers, work=work, steps=STEPS):
    """(losses, whole parameters) on each rank, and whether it still replays."""
    settings = {"loss": sk.nn.MeanSquaredError(), "micro_batches": 2, **settings}

    def on_rank(backend):
        sharded = hybrid(backend, mesh, model=model(), device="cuda", **settings)
        if is_compiled:
            sharded.compile()
        losses = [work(sharded, step) for step in range(steps)]
        return (
            losses,
            sharded.gather_full_parameters().tobytes(),
            sharded.get_model_metadata()["compiled"],
        )

    return sk.run_ranks(int(numpy.prod(mesh)), on_rank)


def check_same_bits(mesh, settings, *, stays_compiled=True, **rest):
    plain, compiled = [
        curve(mesh, settings, is_compiled=is_compiled, **rest) for is_compiled in (False, True)
    ]
    assert [rank[:2] for rank in compiled] == [rank[:2] for rank in plain]
    assert [rank[2] for rank in compiled] == [stays_compiled] * len(compiled)


def reason_of_refusal(mesh, settings, **rest):
    """The text of the one warning; the bits are those of plain steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_same_bits(mesh, settings, stays_compiled=False, **rest)
    (text,) = [str(warning.message) for warning in caught if "uncompiled" in str(warning.message)]
    return text


@pytest.mark.parametrize(
    "mesh, settings",
    [
        ((1, 1, 1), {"policy": "ddp"}),
        FSDP,
        ((1, 2, 1), {"policy": "zero2", "deterministic": False}),
        ((2, 1, 1), {"policy": "ddp", "schedule": "1f1b", "micro_batches": 3}),
        ((2, 1, 1), {"policy": "fsdp", "schedule": "zb-h1", "activation_checkpointing": True}),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_replayed_steps_have_the_bits_of_plain_ones(gpu, mesh, settings):
    check_same_bits(mesh, settings)


@pytest.mark.thorough
def test_from_the_fourth_step_on_nothing_is_computed_on_tapes(gpu):
    def on_rank(backend):
        model = hybrid(
            backend,
            (1, 2, 1),
            policy="fsdp",
            model=layers(),
            device="cuda",
            loss=sk.nn.MeanSquaredError(),
        )
        model.compile()
        for step in range(STEPS):
            if step == 3:
                runtime_of(model).flow.plain_work.forward = None
            work(model, step)

    sk.run_ranks(2, on_rank)


@pytest.mark.emulated
@pytest.mark.thorough
def test_a_gpt_is_replayed_and_bad_ids_are_found(gpu):
    def train(model, step):
        if step == STEPS - 2:
            with pytest.raises(ShapeError, match="ids from"):
                model.train(numpy.full((4, 8), 1000), numpy.full((4, 8), 1))
        return model.train(*token_batch(step, 4))

    check_same_bits((1, 1, 1), {"loss": None}, model=lambda: small_gpt(layers=1), work=train)


class Inside(sk.nn.Module):
    """A model with a GPT in it."""

    def __init__(self):
        self.gpt = small_gpt(layers=1)
        self.loss = sk.nn.CrossEntropy()

    def forward(self, x):
        return self.gpt(x)


@pytest.mark.emulated
@pytest.mark.thorough
def test_a_gpt_inside_a_model_asks_no_device_for_texts(gpu):
    def train(model, step):
        return model.train(*token_batch(step, 2))

    check_same_bits((1, 1, 1), {"loss": None}, model=Inside, work=train)


@pytest.mark.thorough
def test_gradients_that_are_accumulated(gpu):
    def accumulate(model, step):
        losses = [work(model, 10 * step + part) for part in range(2)]
        model.synchronize_gradients()
        model.step()
        return losses

    check_same_bits(
        (1, 2, 1), {"policy": "zero2", "auto_synchronize_gradients": False}, work=accumulate
    )


@pytest.mark.thorough
def test_a_step_whose_buffers_lie_elsewhere_is_plain(gpu):
    def train(model, step):
        if step == STEPS - 1:
            pool = pools_of(model).whole_gradients
            taken = pool.take(max(unit.layout.size for unit in units_of(model)))
            loss = work(model, step)
            pool.give(taken)
            return loss
        return work(model, step)

    check_same_bits(*FSDP, work=train)


@pytest.mark.thorough
def test_an_input_that_is_not_copied_in_is_noticed(gpu, monkeypatch):
    monkeypatch.setattr(cuda_work, "_refill", lambda array, values: None)
    assert "has other bits when it is replayed" in reason_of_refusal(*FSDP)


class Reads(sk.nn.Module):
    """Scales x by a number that it reads."""

    def forward(self, x):
        return x * (2.0 if float(x.array.sum()) > 0 else 0.5)


class Counts(sk.nn.Module):
    """Scales x by what depends on how often it was called."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1.0 + self.calls % 3)


@pytest.mark.parametrize(
    "layer, reason",
    [
        (Reads, "F of unit 1 of stage 0, micro-batch 0 cannot be recorded: RuntimeError"),
        (Counts, "it changes the attribute calls of Counts"),
        (lambda: sk.nn.Dropout(0.2), "dropout has another key in each step"),
    ],
    ids=["reads", "counts", "dropout"],
)
@pytest.mark.thorough
def test_what_cannot_be_captured_is_told_and_trains_on(gpu, layer, reason):
    assert reason in reason_of_refusal(*FSDP, model=lambda: layers(layer()))


class Fork(sk.nn.Linear):
    """x -> (state, skip)."""

    def forward(self, x):
        return super().forward(x), x


class Join(sk.nn.Linear):
    """(state, skip) -> x."""

    def check_input(self, x):
        assert len(x) == 2

    def forward(self, x):
        state, skip = x
        return super().forward(state) + skip


@pytest.mark.parametrize("mesh", [(1, 2, 1), (2, 1, 1)], ids=str)
@pytest.mark.thorough
def test_trees_between_blocks_train_on_uncompiled(gpu, mesh):
    settings = {"policy": "fsdp"}
    text = reason_of_refusal(mesh, settings, model=lambda: layers(Fork(6, 6), Join(6, 6)))
    assert "its unit passes on a tree of arrays" in text


@pytest.mark.thorough
def test_batches_of_trees_train_on_uncompiled(gpu):
    def on_trees(model, step):
        numbers = numpy.random.default_rng(step)
        x, y = [numbers.normal(size=(12, width)).astype("f4") for width in (4, 2)]
        return model.train(*sk.split_batch(model.mesh, (x, x), y))

    def make():
        return sk.nn.Sequential(Join(4, 4), *[layer for _, layer in layers().blocks()])

    assert "x or y is a tree" in reason_of_refusal(*FSDP, model=make, work=on_trees)


def test_tensor_parallel_models_are_refused_with_the_reason(gpu):
    def on_rank(backend):
        model = hybrid(backend, (1, 1, 2), policy="ddp", device="cuda")
        assert not model.supports_compilation
        with pytest.raises(ShardingError, match="messages of tensor parallelism"):
            model.compile()

    sk.run_ranks(2, on_rank)


def test_a_trace_of_replayed_steps_has_the_same_actions_and_says_whose_times_they_are(
    gpu, tmp_path
):
    path = tmp_path / "trace.json"

    def on_rank(backend):
        settings = {"loss": sk.nn.MeanSquaredError(), "micro_batches": 2}
        model = hybrid(backend, (2, 1, 1), model=layers(), device="cuda", **settings)
        model.compile()
        for step in range(STEPS):
            work(model, step)
        with model.trace(path):
            work(model, STEPS)
        assert model.get_model_metadata()["compiled"]
        return list(map(str, program_of(model)))

    programs = sk.run_ranks(2, on_rank)
    content = read_trace(path)
    assert content["otherData"]["times"].startswith("of the host")
    for rank, program in enumerate(programs):
        spans = threads_of(content)[rank, 0]
        actions = [s["name"] for s in spans if s["cat"] not in ("step", "communication")]
        assert actions == program
