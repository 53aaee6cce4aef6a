"""Dropping any one collective or message of a training step makes its result wrong: none is there
for nothing.

A step (AdamW, active clipping) is run once with every call of the channel's verbs noted
by (group, verb, number in that group), and then once per call without exactly that one, on all its
ranks. Arrays that held values before the step keep them; all others, whose contents nobody may rely
on, are NaN. The loss, the norm or the parameters of some rank must then be off by more than
rounding, or an error be raised.

Not dropped: groups of one rank, where there is nobody to talk to, and what carries no numbers of
the model, that is votes (collectively: one byte, did a rank fail) and objects (shapes of
predictions). A vote changes what happens after an error only.
"""

from collections import Counter

import numpy
import pytest
from hybrids import batch, gpt, hybrid, step_once

import shardkit as sk
from shardkit import InMemoryCommunicationBackend
from shardkit.testing.comm import Channel, Handle, WrappedChannel
from shardkit.testing.comm import threads_backend as memory
from shardkit.testing.parallel import gradient_norm_of, units_of

WRONG = 1e-8  # relative; rounding is 1e-15
# Seconds that a rank waits for another: in a step that has all its calls, and in one that lacks
# one, where the ranks may be out of step and wait for ever.
PATIENCE, PATIENCE_IN_VAIN = 60, 1.5


class Finished(Handle):
    """The handle of a message that never was."""

    def wait(self):
        """Nothing to wait for."""

    def test(self):
        return True


class Script:
    """Which call to leave out, and what was called; one per run, shared by all its ranks.

    dropped   key of a call, or None
    one_side  of a message only: "send" or "receive"; None: both
    """

    def __init__(self, dropped=None, one_side=None):
        self.dropped, self.one_side = dropped, one_side
        self.calls: dict[tuple, str] = {}  # key: the public verb
        self.lasting: dict[int, list] = {}  # world rank: arrays that held values before the step
        self._numbers: dict[int, Counter] = {}  # world rank: calls so far, per what is counted

    def begin(self, model):
        """The step begins on this rank."""
        units = units_of(model)
        self.lasting[model.rank] = [
            array
            for unit in units
            for array in (
                unit.whole,
                unit.parameters.shard,
                *(state.array for state in unit.optimizer.state.values()),
            )
            if array is not None
        ]
        self._numbers[model.rank] = Counter()

    def end(self, model):
        """The step is over on this rank."""
        del self._numbers[model.rank]

    def drops(self, backend, side, *counted):
        """Note this call; True if it is the one to leave out."""
        numbers = self._numbers.get(backend.world_ranks[backend.rank])
        verb = backend.progress.current.verb
        if numbers is None or backend.world_size == 1 or verb.endswith("_object"):
            return False
        numbers[counted, side] += 1
        key = (*counted, numbers[counted, side])
        self.calls[key] = verb
        return key == self.dropped and self.one_side in (None, side)

    def leave(self, backend, array):
        """What an array holds that was not received."""
        is_lasting = any(
            numpy.shares_memory(array, held)
            for held in self.lasting[backend.world_ranks[backend.rank]]
        )
        if not is_lasting:
            array.fill(numpy.nan if array.dtype.kind == "f" else -1)


def dropping(script):
    """The in-memory backend under this script."""

    received = {
        "all_reduce": None,
        "broadcast": None,
        "all_gather": 1,
        "reduce_scatter": 1,
        "all_to_all": 1,
    }

    class DroppingCall:
        """A collective that is made unless the script drops it."""

        def __init__(self, channel, name, arguments):
            self.backend, self.name, self.arguments = channel.backend, name, arguments
            self.inside = channel.inside.plan(name, *arguments)

        def __call__(self):
            name, arguments, backend = self.name, self.arguments, self.backend
            is_vote = name == "all_reduce" and arguments[0].dtype == numpy.uint8
            if is_vote or not script.drops(backend, "all", backend.group_key, name):
                self.inside()
            elif received[name] is not None:
                script.leave(backend, arguments[received[name]])

        def begin(self):
            return self.inside.begin()

    def plan(self, name, *arguments):
        if name in received:
            return DroppingCall(self, name, arguments)
        return self.inside.plan(name, *arguments)

    def message(name, side):
        def verb(self, array, peer, tag):
            ends = (self.rank, peer) if side == "send" else (peer, self.rank)
            if not script.drops(self.backend, side, self.backend.group_key, *ends, tag):
                return getattr(self.inside, name)(array, peer, tag)
            if side == "receive":
                script.leave(self.backend, array)
            return Finished()

        return verb

    verbs = {"isend": message("isend", "send"), "irecv": message("irecv", "receive"), "plan": plan}
    verbs["exchange"] = Channel.exchange  # of isend and irecv
    dropping_channel = type("DroppingChannel", (WrappedChannel,), verbs)

    class DroppingBackend(InMemoryCommunicationBackend):
        def use(self, channel):
            channel = dropping_channel(channel)
            channel.backend = self
            super().use(channel)

    return DroppingBackend


# ---- the step ------------------------------------------------------------------------------------

TWO_UNITS = {
    "changes": {"layers": 2},
    "minimum_parameter_group_size": 2000,
}  # neither an embedding alone
CASES = {
    "2x1x2": {"mesh": (2, 1, 2), "policy": "ddp"},
    "1x2x2": {"mesh": (1, 2, 2), "policy": "fsdp", "schedule": "gpipe", **TWO_UNITS},
    "2x2x1 tied": {"mesh": (2, 2, 1), "policy": "zero1", "changes": {"tied": True}},
    "1x1x2 sequence parallel": {"mesh": (1, 1, 2), "sequence_parallel": True},
    "1x1x2 one key head": {
        "mesh": (1, 1, 2),
        "changes": {"style": "llama", "heads": 12, "kv_heads": 1},
    },
    "2x2x1 zb-v": {
        "mesh": (2, 2, 1),
        "policy": "zero2",
        "schedule": "zb-v",
        "changes": {"layers": 2},
    },
    "1x2x1 sums of MPI": {
        "mesh": (1, 2, 1),
        "policy": "fsdp",
        "schedule": "gpipe",
        "deterministic": False,
        **TWO_UNITS,
    },
    "1x2x1 begun ahead": {
        "mesh": (1, 2, 1),
        "policy": "fsdp",
        "schedule": "gpipe",
        "overlap": True,
        **TWO_UNITS,
    },
}


def outcome(script, monkeypatch, mesh, changes={}, timeout=PATIENCE, **settings):
    """[ranks, numbers]: loss and norm of a second step under the script, and the parameters and the
    loss after it.
    """

    def on_rank(backend):
        model = hybrid(backend, mesh, model=gpt(**changes), **settings)
        step_once(model, 0)
        script.begin(model)
        loss = step_once(model, 1)
        script.end(model)
        after = model.evaluate(
            *sk.split_batch(model.mesh, *batch(2))
        )  # shows copies of tied weights too
        return numpy.concatenate(
            [[loss, gradient_norm_of(model), after], model.gather_full_parameters()]
        )

    with monkeypatch.context() as patch:
        patch.setattr(memory, "InMemoryCommunicationBackend", dropping(script))
        return numpy.array(sk.run_ranks(numpy.prod(mesh), on_rank, timeout))


def is_noticed(script, right, monkeypatch, **case):
    """True if the step under the script fails, or ends in other numbers: NaN is one."""
    try:
        with numpy.errstate(all="ignore"):
            got = outcome(script, monkeypatch, **{"timeout": PATIENCE_IN_VAIN, **case})
    except (sk.ShardkitError, ArithmeticError):
        return True
    return not (numpy.abs(got - right) <= WRONG * numpy.abs(right)).all()


def unnoticed_calls(monkeypatch, every=1, **case):
    """(all calls of the step, those of every so many that it can do without), each as verb and
    key.
    """
    script = Script()
    right = outcome(script, monkeypatch, **case)
    again = is_noticed(Script(), right, monkeypatch, **{**case, "timeout": PATIENCE})
    assert not again, "two runs of the same step differ"
    calls = [(verb, *key) for key, verb in script.calls.items()]
    return calls, [
        call
        for call in calls[::every]
        if not is_noticed(Script(call[1:]), right, monkeypatch, **case)
    ]


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.thorough
def test_a_step_without_any_one_of_its_calls_is_wrong(case, every, monkeypatch):
    calls, unnoticed = unnoticed_calls(monkeypatch, every, **CASES[case])
    assert len(calls) > 6 and not unnoticed, (
        f"{len(unnoticed)} of {len(calls)} calls are there for nothing"
    )


@pytest.mark.thorough
def test_what_an_embedding_alone_gathers_for_its_backward_is_the_only_call_for_nothing(monkeypatch):
    """Rows are looked up, so the gradient of a table needs no table. FSDP gathers all units alike,
    3N (d-1)/d bytes in all; a unit that holds a block besides, as in the cases above, needs it.
    """
    case = {"mesh": (1, 2, 1), "policy": "fsdp", "schedule": "gpipe", "timeout": PATIENCE}
    calls, unnoticed = unnoticed_calls(monkeypatch, **case)
    gathers = [call for call in calls if call[0] == "all_gather"]
    assert len(gathers) == 8, "agreement on the batch, three units, two of them again, norm, loss"
    assert unnoticed == [gathers[5]]


@pytest.mark.parametrize("missing", ["send", "receive"])
@pytest.mark.thorough
def test_a_message_that_only_one_side_posts_is_an_error_and_not_a_wait_for_ever(
    missing, monkeypatch
):
    case = {"mesh": (2, 1, 1), "changes": {"tied": True}}
    script = Script()
    outcome(script, monkeypatch, **case)
    messages = [key for key in script.calls if isinstance(key[1], int)]
    assert len(messages) == 6, "two micro-batches each way, and the two of the tied weights"
    for key in messages[::2]:  # one of each kind
        with pytest.raises(sk.CommunicationError):
            outcome(Script(key, one_side=missing), monkeypatch, timeout=0.5, **case)
