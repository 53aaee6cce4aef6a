"""sk.coupled between processes: the samples of solver ranks train as those of a file do."""

import itertools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import shardkit as sk
from shardkit import ConfigurationError, ShardingError
from shardkit.testing.coupling import FieldMoments, from_stored

pytestmark = pytest.mark.mpi(min_size=2)
RECORD_BYTES = 192  # of sample()
BATCH = 12


def sample(put, rank):
    generator = numpy.random.default_rng([put, rank])
    x = generator.standard_normal(8).astype("float32")
    return {"x": x, "y": x[:1] * 2 + x[1:2]}


def network():
    return sk.models.MLP([8, 16, 1])


def model_on(backend, **sizes):
    config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(lr=1e-2))
    return sk.HybridShardedModel(network(), config, **sizes)


def places(puts):
    """(put, rank) in the order of samples; puts   of each rank"""
    return [(put, rank) for put in range(max(puts)) for rank, n in enumerate(puts) if put < n]


def losses_of_a_file(model, puts, batch):
    """Losses of a training on the samples of these puts of each rank, in order."""
    rows = [sample(*place) for place in places(puts)]
    x, y = (numpy.stack([row[name] for row in rows]) for name in ("x", "y"))
    firsts = range(0, len(rows) - batch + 1, batch)
    return [
        model.train(*sk.split_batch(model.mesh, x[first : first + batch], y[first : first + batch]))
        for first in firsts
    ]


def agree(backend, is_right):
    found = backend.all_gather_object(bool(is_right))
    assert found == [True] * backend.world_size


def put_all(c, puts, first=0):
    for put in range(first, puts):
        c.put(**sample(put, c.solvers.rank))


@pytest.mark.parametrize("trainers", [None, 1, 2])
@pytest.mark.parametrize("uneven", [0, 5])
def test_losses_have_the_bits_of_a_training_from_a_file(backend, trainers, uneven):
    """In a buffer that is far smaller than the stream; uneven: ranks end one after the other."""
    if trainers is not None and trainers >= backend.world_size:
        pytest.skip("no rank is left to solve")
    puts = [21 - uneven * rank for rank in range(backend.world_size - (trainers or 0))]
    with sk.coupled(None, trainers, buffer_bytes=BATCH * RECORD_BYTES) as c:
        model = model_on(c.backend) if c.is_trainer else None
        losses = []
        if c.is_solver:
            for put in range(max(puts)):
                if put < puts[c.solvers.rank]:
                    c.put(**sample(put, c.solvers.rank))
                else:
                    c.finish()
                if c.is_trainer:
                    losses += [model.train(*part) for part in c.batches(model, BATCH)]
            c.finish()
        if c.is_trainer:
            losses += [model.train(*part) for part in c.batches(model, BATCH)]
            assert losses == losses_of_a_file(model_on(c.backend), puts, BATCH)
            assert len(losses) == sum(puts) // BATCH
            assert 0 < c.report()["buffer_bytes"] <= BATCH * RECORD_BYTES
            read = [sample(*place)["x"] for place in places(puts)[: len(losses) * BATCH]]
            assert c.statistics()["x"] == sum(map(FieldMoments.of, read), FieldMoments())


@pytest.mark.thorough
@pytest.mark.mpi(min_size=3)
def test_ranks_of_a_tensor_axis_read_the_same_samples(backend):
    with sk.coupled(None, 2) as c:
        if c.is_solver:
            put_all(c, 12)
        else:
            sizes = {"tensor_parallel_size": 2}
            model = model_on(c.backend, **sizes)
            losses = [model.train(*part) for part in c.batches(model, 4)]
            puts = [12] * (backend.world_size - 2)
            assert losses == losses_of_a_file(model_on(c.backend, **sizes), puts, 4)


def test_both_sides_go_on_after_a_restart(backend, tmp_path):
    """The solver has its own checkpoint at an older put than the trainers have read to."""
    folder, puts = backend.broadcast_object(tmp_path / "run"), 16
    num_solvers = backend.world_size - 1
    losses, kept = [], None
    for first, last in ((0, 10), (2, puts)):
        with sk.coupled(None, 1, first_put=first, buffer_bytes=8 * RECORD_BYTES) as c:
            if c.is_solver:
                put_all(c, last, first)
                assert c.num_puts == last
                c.finish()
            else:
                model = model_on(c.backend)
                if first:
                    model.load_model(folder)
                for part in itertools.islice(c.batches(model, 4), 3 if not first else None):
                    losses.append(model.train(*part))
                model.save_model(folder)
                kept = c.statistics()
                if first:
                    samples = puts * num_solvers // 4 * 4
                    assert kept["x"].values == samples * 8
                    wanted = losses_of_a_file(model_on(c.backend), [puts] * num_solvers, 4)
                    assert losses == wanted


@pytest.mark.parametrize("predict_on", ["solver", "trainer"])
def test_a_solver_predicts_by_the_published_model_and_is_steered(backend, predict_on):
    x = numpy.arange(24, dtype="float32").reshape(3, 8)
    with sk.coupled(None, 1, predict_on=predict_on) as c:
        if c.is_solver:
            put_all(c, 1)
            first = c.predict(x)
            puts = 1
            while c.is_training:  # the solver goes on until the loss is low
                put_all(c, puts + 1, puts)
                puts += 1
            mine = first.tobytes(), c.predict(x).tobytes(), c.steered["done"]
            assert c.report()["puts"] == puts
        else:
            model = model_on(c.backend)
            c.publish(model)
            first = model.predict(x)
            for number, part in enumerate(c.batches(model, 2)):
                model.train(*part)
                c.publish(model)
                if number == 3:
                    break
            c.steer(done=[number, "low"])
            c.finish()
            mine = first.tobytes(), model.predict(x).tobytes(), [3, "low"]
        c.finish()
    found = backend.all_gather_object(mine)
    assert all(each[2] == [3, "low"] for each in found)
    if predict_on == "trainer":
        assert len(set(map(str, found))) == 1
    else:  # a solver may have the model before the last: it is under way
        assert all(each[0] for each in found)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    "buffer, when_full",
    [("latest", None), ("latest", "drop_random"), ("once", "drop_oldest"), ("reservoir", None)],
)
def test_what_is_dropped_is_counted_and_bytes_stay_at_the_limit(backend, buffer, when_full):
    puts, limit = 300, 40 * RECORD_BYTES
    with sk.coupled(None, 1, buffer=buffer, when_full=when_full, buffer_bytes=limit) as c:
        if c.is_solver:
            put_all(c, puts)
            c.finish()
            assert c.report()["puts"] == puts
        else:
            model = model_on(c.backend)
            losses = [model.train(*part) for part in c.batches(model, 4)]
            report = c.report()
            assert report["received"] == puts * (backend.world_size - 1) and losses
            assert 0 < report["buffer_bytes"] <= limit
            if buffer != "reservoir":
                left = report["received"] - report["dropped"] - 4 * len(losses)
                assert 0 <= left < 4


WRONG = [
    ({"trainers": 0}, "trainers = 0"),
    ({"trainers": 9}, "trainers = 9"),
    ({"buffer": "all"}, "buffer = 'all'"),
    ({"buffer": []}, r"buffer = \[\]"),
    ({"seed": lambda: 0}, "seed = <function"),
    ({"buffer": "reservoir", "when_full": "wait"}, "never full"),
    ({"when_full": "drop"}, "when_full = 'drop'"),
    ({"buffer_bytes": 0}, "buffer_bytes = 0"),
    ({"on_loss": "abort"}, "on_loss = 'abort'"),
    ({"predict_on": "gpu"}, "predict_on = 'gpu'"),
    ({"in_flight": 0}, "in_flight = 0"),
    ({"first_put": -1}, "first_put = -1"),
]


def test_wrong_options_of_one_rank_are_refused_on_all(backend):
    for options, words in WRONG:
        given = {"trainers": 1, **options} if backend.rank == 1 else {"trainers": 1}
        with pytest.raises(ConfigurationError, match=f"rank 1: {words}|{words}"):
            sk.coupled(None, **given)
    with pytest.raises(ConfigurationError, match="trainers = .*; wanted the same on all"):
        sk.coupled(None, None if backend.rank else 1)


@pytest.mark.parametrize("wrong", ["fields", "bytes", "batch", "first_put"])
def test_what_cannot_be_trained_on_is_refused_on_both_sides(backend, wrong):
    first_put = 3 if wrong == "first_put" else 0
    limit = {"bytes": 100, "batch": 2 * RECORD_BYTES}.get(wrong, 1 << 20)
    words = {
        "fields": "wanted the same on all",
        "bytes": "has no room for records",
        "batch": f"set buffer_bytes to {4 * RECORD_BYTES} or more",
        "first_put": "start it with first_put = 0",
    }[wrong]
    if wrong == "fields" and backend.world_size == 2:
        pytest.skip("one solver rank differs from nobody")
    trainers = 2 if wrong == "fields" and backend.world_size > 3 else 1
    with sk.coupled(None, trainers, buffer_bytes=limit, first_put=first_put) as c:
        if c.is_trainer:
            model = model_on(c.backend)
            with pytest.raises(ShardingError, match=words):
                next(c.batches(model, 4))
        elif wrong in ("fields", "bytes"):
            fields = (
                {"other": numpy.ones(2)} if wrong == "fields" and backend.rank else sample(0, 0)
            )
            with pytest.raises(ShardingError, match=words):
                while True:
                    c.put(**fields)
        else:
            put_all(c, first_put + 4, first_put)


def test_each_side_has_its_own_calls(backend):
    with sk.coupled(None, 1) as c:
        with pytest.raises(ShardingError, match="is of"):
            c.put(x=numpy.ones(1)) if c.is_trainer else c.statistics()
        if c.is_solver:
            with pytest.raises(ValueError, match="weight"):
                c.put(x=numpy.ones(1), weight=0.0)
            c.finish()
            with pytest.raises(ShardingError, match="after finish"):
                c.put(x=numpy.ones(1))


def test_a_full_buffer_of_a_rank_that_is_both_raises(backend):
    with sk.coupled(None, buffer_bytes=2 * RECORD_BYTES) as c:
        put_all(c, 2)
        with pytest.raises(BufferError, match=r"train on batches\(\)"):
            c.put(**sample(2, 0))
        with pytest.raises(ShardingError, match="use batches"):
            c.samples()
    agree(backend, c.report()["received"] == 2)


@pytest.mark.thorough
def test_a_reservoir_of_ranks_that_are_both_is_read_as_often_as_wanted(backend):
    seen = []
    with sk.coupled(None, buffer="reservoir", buffer_bytes=8 * RECORD_BYTES) as c:
        model = model_on(c.backend)
        for put in range(30):
            c.put(x=numpy.full(8, put, "float32"), y=numpy.ones(1, "float32"), time=float(put))
            for _, time in itertools.islice(c.batches(model, BATCH, y="time"), 2):
                seen.append(time)
        c.finish()
        assert not list(c.batches(model, BATCH))
        rows = BATCH * len(seen)
        assert c.statistics()["x"].values == 8 * rows
    assert 40 < len(seen) <= 60  # the first ones wait until there are as many samples as they draw
    assert max(map(max, seen[:10])) < 12 and max(map(max, seen)) > 20
    backend.barrier()


def test_a_run_trains_on_a_stream_until_it_ends(backend, tmp_path):
    """By sk.Training, whose checkpoints hold the statistics up to their step."""
    folder = backend.broadcast_object(tmp_path / "run")
    with sk.coupled(None, 1) as c:
        if c.is_solver:
            put_all(c, 14)
            c.finish()
        else:
            held_out = [sample(put, 99) for put in range(10)]
            held_out = tuple(numpy.stack([row[name] for row in held_out]) for name in ("x", "y"))
            settings = {"run.steps": 100, "batch.sequences": 4, "run.report_every": 1}
            training = sk.Training(
                network(),
                (c.samples(), held_out),
                folder=folder,
                settings=settings,
                callbacks=[c.callback(2)],
                backend=c.backend,
            )
            with ThreadPoolExecutor(1) as apart:  # a main thread would listen to signals
                result = apart.submit(training.run).result()
            steps = 14 * (backend.world_size - 1) // 4
            assert (result.steps, result.is_interrupted) == (steps, False)
            (content,) = (folder / "checkpoints").glob("*/coupling.json")
            stored = json.loads(content.read_text())
            assert stored["samples"] == steps * 4
            assert from_stored(stored["moments"]) == c.statistics()
            assert c.statistics()["x"].values == steps * 4 * 8


# ---- who waits is answered -----------------------------------------------------------------------

X = numpy.ones((1, 8), "float32")
STUCK, ENDED = r"trainers wait for a put\(\) of this rank", r"finished without a publish\(\)"


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("buffer", ["once", "latest", "reservoir"])
@pytest.mark.parametrize("predict_on", ["solver", "trainer"])
def test_a_prediction_without_which_nothing_is_put_is_refused(backend, buffer, predict_on):
    """The trainers wait for a whole batch then; the solver goes on with more puts."""
    batch = 4 * (backend.world_size - 1)
    with sk.coupled(None, 1, buffer=buffer, predict_on=predict_on) as c:
        if c.is_solver:
            for put in range(2):
                put_all(c, put + 1, put)
                with pytest.raises(ShardingError, match=STUCK):
                    c.predict(X)
            put_all(c, 4, 2)
            assert c.predict(X).shape == (1, 1)  # of the model that follows on the first batch
        else:
            model = model_on(c.backend)
            for part in itertools.islice(c.batches(model, batch), 1):
                model.train(*part)
            c.publish(model)


@pytest.mark.mpi(min_size=3)
def test_a_prediction_is_refused_by_whichever_trainer_waits(backend):
    with sk.coupled(None, 2) as c:
        if c.is_solver:
            for _ in range(3):
                with pytest.raises(ShardingError, match=STUCK):
                    c.predict(X)
        else:
            assert not list(c.batches(model_on(c.backend), 2))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("every", [1, 100])
def test_a_run_that_reads_ahead_publishes_or_refuses(backend, tmp_path, every):
    """Its next batch waits for puts while it trains: no reason to refuse."""
    folder = backend.broadcast_object(tmp_path / "run")
    with sk.coupled(None, 1) as c:
        if c.is_solver:
            put_all(c, 4)
            if every == 1:
                assert c.predict(X).shape == (1, 1)
            else:
                with pytest.raises(ShardingError, match=STUCK):
                    c.predict(X)
        else:
            training = sk.Training(
                network(),
                (c.samples(), (X.repeat(4, 0), X[:, :1].repeat(4, 0))),
                folder=folder,
                settings={"run.steps": 100, "batch.sequences": 4 * (backend.world_size - 1)},
                callbacks=[c.callback(every)],
                backend=c.backend,
            )
            with ThreadPoolExecutor(1) as apart:
                assert apart.submit(training.run).result().steps == 1


@pytest.mark.parametrize("predict_on", ["solver", "trainer"])
@pytest.mark.parametrize("published", [False, True])
def test_a_solver_predicts_after_the_end_of_the_stream(backend, predict_on, published):
    with sk.coupled(None, 1, predict_on=predict_on) as c:
        if c.is_solver:
            c.finish()
            while c.is_training:
                pass
            if published:
                assert [c.predict(X).shape for _ in range(2)] == [(1, 1)] * 2
            else:
                with pytest.raises(ShardingError, match=ENDED):
                    c.predict(X)
        elif published:
            c.publish(model_on(c.backend))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("predict_on", ["solver", "trainer"])
def test_ranks_that_are_both_predict_themselves(backend, predict_on):
    with sk.coupled(None, predict_on=predict_on) as c:
        with pytest.raises(ShardingError, match="there is no model yet"):
            c.predict(X)
        model = model_on(c.backend)
        c.publish(model)
        assert numpy.array_equal(c.predict(X), model.predict(X))


def test_what_a_trainer_cannot_predict_is_raised_by_the_solver_alone(backend):
    with sk.coupled(None, 1, predict_on="trainer") as c:
        if c.is_solver:
            with pytest.raises(ShardingError, match="on the trainer"):
                c.predict(X[:, :3])
            assert c.predict(X).shape == (1, 1)
        else:
            c.publish(model_on(c.backend))


@pytest.mark.parametrize("raising", ["solver", "trainer"])
def test_others_hear_of_a_rank_that_raises_and_lives_on(backend, raising):
    """None of them waits in a put or for a batch."""
    words = r"rank \d has left the coupling by ZeroDivisionError: own"
    fails = backend.rank == (0 if raising == "solver" else backend.world_size - 1)
    with pytest.raises(
        ZeroDivisionError if fails else sk.CommunicationError, match="own" if fails else words
    ):
        with sk.coupled(None, 1, buffer_bytes=4 * RECORD_BYTES) as c:
            if c.is_trainer:
                for _ in c.batches(model_on(c.backend), 2):
                    if fails:
                        raise ZeroDivisionError("own")
                assert re.search(words, c.report()["ended_by"])
                raise sk.CommunicationError(c.report()["ended_by"])
            for put in itertools.count():
                if fails and put == 9:
                    raise ZeroDivisionError("own")
                put_all(c, put + 1, put)
    backend.barrier()


@pytest.mark.thorough
def test_a_model_that_a_solver_wants_while_all_close_is_sent_before_they_part(backend):
    """Its rank closes with a model to take, and asks for the next: an answer after "close"."""
    with sk.coupled(None, 1) as c:
        if c.is_solver:
            c.put(**sample(0, c.solvers.rank))
            is_right = c.predict(numpy.ones((1, 8), "float32")).shape == (1, 1)
            c.finish()
            time.sleep(1.0)  # two models are published, and one of them is sent
        else:
            model = model_on(c.backend)
            c.publish(model)
            is_right = len(list(c.batches(model, 1))) == backend.world_size - 1
            c.publish(model)
            c.publish(model)
    agree(backend, is_right)


def test_a_wrong_put_costs_no_memory_to_send_the_next_from(backend):
    with sk.coupled(None, 1, in_flight=1) as c:
        if c.is_solver:
            put_all(c, 1)
            for wrong in ({"time": "now"}, {"x": X}, {"weight": float("nan")}, {"z": X}):
                with pytest.raises((ValueError, sk.ShapeError)):
                    c.put(**{**sample(1, 0), **wrong})
            put_all(c, 4, 1)
            c.finish()
        else:
            assert len(list(c.batches(model_on(c.backend), backend.world_size - 1))) == 4


def test_steer_takes_any_names(backend):
    values = {"to": 1, "self": 2, "kind": "low", "body": [float("inf")], "source": {"a": None}}
    with sk.coupled(None, 1) as c:
        if c.is_trainer:
            c.steer(**values)
            c.finish()
        else:
            while c.is_training:
                pass
            assert c.steered == values


@pytest.mark.parametrize("predict_on", ["solver", "trainer"])
def test_a_coupling_is_closed_once_and_refuses_what_needs_the_others(backend, predict_on):
    with sk.coupled(None, 1, predict_on=predict_on) as c:
        model = None if c.is_solver else model_on(c.backend)
        if c.is_solver:
            put_all(c, 2)
        else:
            list(c.batches(model, 1))
        c.close()
        of_trainers = lambda: c.steer(late=1), lambda: c.publish(model)
        for late in (lambda: c.predict(X),) if c.is_solver else of_trainers:
            with pytest.raises(ShardingError, match="is closed; wanted this call before"):
                late()
        c.close()
    assert not c.is_solver or (c.report()["puts"] == 2 and not c.is_training)


@pytest.mark.thorough
def test_two_couplings_share_a_communicator(backend):
    with sk.coupled(None, 1) as one, sk.coupled(None, 1, buffer="latest") as two:
        if one.is_solver:
            for c in (two, one):
                put_all(c, 3)
                c.finish()
        else:
            model = model_on(one.backend)
            counts = [len(list(c.batches(model, 1))) for c in (one, two)]
            assert counts == [3 * (backend.world_size - 1)] * 2
