"""Messages between pipeline ranks: receives are posted ahead, buffers are used again, a failed step
leaves nothing behind.
"""

import numpy
import pytest
from builders import small_gpt, token_batch
from hybrids import table_of

import shardkit as sk
from shardkit.testing.comm import ThreadChannel
from shardkit.testing.parallel import device_of
from shardkit.testing.schedule import Kind


def make(backend, **settings):
    settings = {"minimum_parameter_group_size": 64, "micro_batches": 4, **settings}
    return sk.PipelineParallelModel(small_gpt(), sk.ShardingConfiguration(backend, **settings))


def test_after_the_first_step_each_receive_is_posted_before_the_work_that_precedes_it(monkeypatch):
    """On the last of two ranks: a receive is posted, then a forward runs, then that receive is
    waited for.
    """
    log = {}
    irecv = ThreadChannel.irecv
    monkeypatch.setattr(
        ThreadChannel,
        "irecv",
        lambda self, *rest: log.setdefault(self.rank, []).append("post") or irecv(self, *rest),
    )

    def run(backend):
        model = make(backend)
        model.train(*token_batch(0, 8))
        table = table_of(model)
        forward = table[Kind.FORWARD]
        table[Kind.FORWARD] = lambda *a: log[backend.rank].append("F") or forward(*a)
        log[backend.rank] = []
        model.train(*token_batch(1, 8))
        return log[backend.rank]

    entries = [entry for entry in sk.run_ranks(2, run)[1]]
    units = entries.count("F") // 4
    assert entries[:2] == ["post", "post"]  # the first, and at its end the next: then F
    assert entries.count("post") == 4
    assert all(
        entries[:at].count("post") > entries[:at].count("F") // units
        for at, entry in enumerate(entries)
        if entry == "F" and entries[:at].count("F") < 3 * units
    )


def test_steps_after_the_first_take_no_new_memory_for_what_they_receive():
    def run(backend):
        model = make(backend)
        model.train(
            *token_batch(0, 400)
        )  # 100 x 12 x 16 float32 in each message: large enough for the arena
        bytes_in_use = device_of(model).bytes_in_use("activations")
        for step in range(1, 4):
            model.train(*token_batch(step, 400))
        assert bytes_in_use > 0
        return device_of(model).bytes_in_use("activations") == bytes_in_use

    assert sk.run_ranks(3, run) == [True] * 3


def test_batches_of_another_size_are_received_in_their_own_shape():
    def run(backend):
        model = make(backend)
        return [model.train(*token_batch(0, samples)) for samples in (8, 4, 8)], model.predict(
            token_batch(1, 3)[0]
        ).shape

    (losses, shape), *others = sk.run_ranks(3, run)
    assert all(other == (losses, shape) for other in others)
    assert shape[0] == 3 and numpy.isfinite(losses).all()


def test_a_step_that_fails_on_all_ranks_is_followed_by_one_that_is_right():
    """The loss fails on the last rank of the pipeline, and the other ranks fail before they have
    received its gradient.
    """

    def run(backend):
        model, untouched = make(backend), make(backend)
        table = table_of(model)
        right = dict(table)

        def failing(action, inputs, results):
            raise sk.CommunicationError(
                "on purpose"
            )  # other errors of a block wait for the vote of all ranks

        for _ in range(3):
            table.update({Kind.BACKWARD: failing, Kind.RECV_B: failing})
            with pytest.raises(sk.CommunicationError, match="on purpose"):
                model.train(*token_batch(0, 8))
            table.update(right)
        losses = [m.train(*token_batch(step, 8)) for m in (model, untouched) for step in range(2)]
        return losses[:2] == losses[2:]

    assert sk.run_ranks(2, run) == [True] * 2


def test_an_activation_whose_shape_does_not_follow_from_its_micro_batch_is_refused():
    class Widening(sk.nn.Module):
        def __init__(self):
            self.weight = sk.nn.Linear(4, 4)
            self._count = 0

        def forward(self, x):
            self._count += 1
            return self.weight(x)[: self._count]

    def run(backend):
        layers = sk.nn.Sequential(Widening(), sk.nn.Linear(4, 4))
        config = sk.ShardingConfiguration(
            backend,
            micro_batches=2,
            minimum_parameter_group_size=1,
            loss=lambda prediction, y: (prediction * prediction).mean(),
        )
        model = sk.PipelineParallelModel(layers, config)
        model.train(numpy.ones((8, 4), "float32"), numpy.ones((8, 4), "float32"))

    with pytest.raises(sk.ShapeError, match="activation of shape"):
        sk.run_ranks(2, run)
