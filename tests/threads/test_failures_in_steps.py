"""An error that ranks meet while they compute is raised on all ranks of the mesh, whatever its
axes; they go on together, and take the next step as if it had not been.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.testing.parallel import shortage

F64 = {"dtype": "float64"}
CLASSES, TOKENS, SAMPLES = 7, 11, 8
# pipeline, tensor, data, domain
MESHES = {
    "pipeline x domain": (2, 1, 1, 2),
    "pipeline x tensor": (2, 2, 1, 1),
    "pipeline x data": (2, 1, 2, 1),
    "pipeline of 3": (3, 1, 1, 1),
    "domain": (1, 1, 1, 2),
    "domain x tensor": (1, 2, 1, 2),
    "data x domain": (1, 1, 2, 3),
    "data x tensor": (1, 2, 2, 1),
    "data x domain, one block": (1, 1, 2, 2),
    "data x tensor, one block": (1, 2, 2, 1),
}
ALL = pytest.mark.parametrize("mesh", MESHES)


class Fails(nn.Module):
    """Raises what it holds once, on the ranks that were told to."""

    error = None

    def forward(self, x):
        error, self.error = self.error, None
        if error is not None:
            raise error
        return x


class OneBlock(nn.Sequential):
    """Units are gathered as layers are called."""

    def forward(self, x):
        return super().forward(x)


def net(place, kind=nn.Sequential):
    """Return a model of four layers; the one at `place` fails when it is told to."""
    blocks = [
        nn.Embedding(CLASSES, 8, **F64),
        nn.FeedForward(8, 12, **F64),
        nn.FeedForward(8, 12, **F64),
        nn.Linear(8, CLASSES, **F64),
    ]
    fails = nn.partwise(Fails)()
    blocks[place] = nn.Sequential(fails, blocks[place])
    return nn.partwise(kind)(*blocks), fails


def batch(step, *, bad=None):
    """Return x and y, of which one label may be of no class."""
    rng = numpy.random.default_rng(step)
    x = rng.integers(0, CLASSES, (SAMPLES, TOKENS))
    y = x.copy()
    if bad is not None:
        y[bad] = CLASSES
    return x, y


def made(backend, mesh, place=3, **settings):
    pipeline, tensor, data, domain = MESHES[mesh]
    wrapped, fails = net(place, OneBlock if mesh.endswith("one block") else nn.Sequential)
    wrapped.finish(3)
    settings = {"minimum_parameter_group_size": 64, "micro_batches": 2, **settings}
    if tensor > 1:
        settings["tensor_plan"] = {"1.up": "column", "1.down": "row"}
    config = sk.ShardingConfiguration(
        backend, optimizer=sk.SGD(lr=0.05), loss=nn.CrossEntropy(), **settings
    )
    sizes = {"pipeline_parallel_size": pipeline, "tensor_parallel_size": tensor}
    sizes |= {"data_parallel_size": data, "domain_parallel_size": domain}
    policy = "zero2" if mesh.startswith("domain") else "fsdp"
    return sk.HybridShardedModel(wrapped, config, policy=policy, **sizes), fails


def on_all_ranks(mesh, run):
    return sk.run_ranks(numpy.prod(MESHES[mesh]).item(), run, timeout=500)


def ranks_at_the_end(mesh, place):
    """Return the world ranks of the last stage that have the first (0) or last (-1) label."""
    numbers = numpy.arange(numpy.prod(MESHES[mesh]))
    pipeline, tensor, data, domain = MESHES[mesh]
    of_stage = numbers.reshape(pipeline, data, domain, tensor)[-1]
    return of_stage[place, place].tolist()


CALLS = {
    "train": lambda model, x, y: model.train(x, y),
    "compute_gradients": lambda model, x, y: model.compute_gradients(x, y),
    "evaluate": lambda model, x, y: model.evaluate(x, y),
    "predict": lambda model, x, y: model.predict(x),
}


@ALL
@pytest.mark.parametrize("call, bad", [("train", (-1, -1)), ("evaluate", (0, 0))])
@pytest.mark.thorough(but=3)
def test_a_label_of_no_class_is_an_error_of_all_ranks(mesh, call, bad):
    """Only one data rank has it, and one domain rank, which is named; the losses of later steps are
    as without.
    """
    one_of_them = "|".join(map(str, ranks_at_the_end(mesh, bad[0])))
    named = rf"^ranks? ({one_of_them})[,:] .* ids from . to 7"

    def run(backend):
        model, _ = made(backend, mesh)
        losses = []
        for step in range(3):
            with pytest.raises(sk.ShardkitError, match=named):
                CALLS[call](model, *sk.split_batch(model.mesh, *batch(step, bad=bad)))
            losses.append(model.train(*sk.split_batch(model.mesh, *batch(step))))
        model.close()
        return losses

    def plain(backend):
        model, _ = made(backend, mesh)
        losses = [model.train(*sk.split_batch(model.mesh, *batch(n))) for n in range(3)]
        model.close()
        return losses

    wanted = on_all_ranks(mesh, plain)[0]
    assert on_all_ranks(mesh, run) == [wanted] * numpy.prod(MESHES[mesh])


@ALL
@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize(
    "call, error, is_first",
    [
        ("train", sk.ShapeError, True),
        ("train", MemoryError, False),
        ("compute_gradients", KeyError, True),
        ("evaluate", sk.ShapeError, False),
        ("predict", MemoryError, True),
        ("predict", KeyError, False),
    ],
)
@pytest.mark.thorough(but=4)
def test_an_error_of_a_block_is_one_of_all_ranks(mesh, call, place, error, is_first):
    """Also before the next stage knows what is coming; of one rank, or of those that would wait for
    it in the block, in the loss behind it, or to gather parameters.
    """

    def run(backend):
        model, fails = made(backend, mesh, place)
        if not is_first:
            model.train(*sk.split_batch(model.mesh, *batch(0)))
        at = model.mesh.coordinates
        are_awaited = place == 3 or mesh.endswith("one block")
        if at.data == 0 and (at.domain == 0 or are_awaited):
            fails.error = error("no luck")
        parts = sk.split_batch(model.mesh, *batch(1))
        with pytest.raises(Exception, match="no luck") as caught:
            CALLS[call](model, *parts)
        kind = type(caught.value)
        fails.error = None
        loss = model.train(*parts)
        model.close()
        return kind, loss

    found = on_all_ranks(mesh, run)
    kinds = {kind for kind, _ in found}
    assert len({loss for _, loss in found}) == 1
    if error is not KeyError:  # which has a class of ours for no other rank
        assert kinds == {sk.OutOfMemoryError if error is MemoryError else error}


def test_a_rank_that_others_wait_for_in_a_layer_raises_alone(monkeypatch):
    """Nobody can tell them there; its error ends the program on all."""
    monkeypatch.setattr(shortage, "PATIENCE_SECONDS", 0.1)

    def run(backend):
        model, fails = made(backend, "domain x tensor", 0)
        if backend.rank == 1:
            fails.error = sk.ShapeError("no luck")
        model.train(*batch(1))

    with pytest.raises(sk.ShapeError, match="no luck"):
        on_all_ranks("domain x tensor", run)
