"""The parts of a coupling without its messages: order, records, buffers, statistics."""

import json
import time
from fractions import Fraction
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shardkit import ShapeError
from shardkit.testing.coupling import (
    NOTE_TAG,
    RECORD_TAG,
    FieldMoments,
    NoteDesk,
    Options,
    PutOrder,
    Receiver,
    RecordForm,
    RecordMemory,
    Sides,
    added,
    attendant,
    from_stored,
    header_of,
    moments_of,
    open_buffer,
    to_stored,
)

# ---- order ---------------------------------------------------------------------------------------


@given(some.lists(some.integers(0, 6), min_size=1, max_size=4))
def test_samples_are_the_puts_in_the_order_of_put_and_rank(ends):
    order = PutOrder.of(len(ends)).after(ends)
    puts = [(put, rank) for put in range(max(ends)) for rank, end in enumerate(ends) if put < end]
    numbers = [put * len(ends) + rank for put, rank in puts]
    assert [order.number(sample) for sample in range(len(puts) + 2)] == [*numbers, None, None]
    assert all(map(order.has, numbers)) and None not in order.ends


@given(some.lists(some.none() | some.integers(3, 6), min_size=1, max_size=4))
def test_numbers_before_the_first_end_do_not_depend_on_who_ends_later(ends):
    order, early = PutOrder.of(len(ends)).after(ends), range(3 * len(ends))
    assert [order.number(sample) for sample in early] == list(early)


# ---- records -------------------------------------------------------------------------------------

FIELDS = {
    "b": numpy.arange(6, dtype="float32").reshape(2, 3),
    "a": numpy.array(7, "int64"),
    "mask": numpy.array([True, False, True]),
    "strided": numpy.arange(40.0).reshape(5, 8)[::2, 1::3],
}


def test_a_record_holds_what_was_put():
    form = RecordForm.of(FIELDS)
    assert RecordForm.from_text(form.text()) == form
    records = numpy.zeros((2, form.record_bytes), "uint8")
    RecordMemory(form, records[1]).write(FIELDS, 12, 0.5, 2.0)
    fields = form.read(records)
    for name, values in FIELDS.items():
        assert fields[name].dtype == values.dtype and numpy.array_equal(fields[name][1], values)
    assert header_of(records)[1].item() == (12, 0.5, 2.0)
    assert fields["time"].tolist() == [0.0, 0.5] and fields["weight"].tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    "other",
    [
        {"b": FIELDS["b"]},
        {**FIELDS, "b": FIELDS["b"].T},
        {**FIELDS, "b": FIELDS["b"].astype("float64")},
        {**FIELDS, "b": FIELDS["b"].astype(">f4")},
    ],
)
def test_other_fields_than_those_of_the_first_put_are_refused(other):
    form = RecordForm.of(FIELDS)
    record = RecordMemory(form, numpy.zeros(form.record_bytes, "uint8"))
    with pytest.raises(ShapeError, match=r"the first put was a int64 \[\], b float32 \[2, 3\]"):
        record.write(other, 0, 0.0, 1.0)


@pytest.mark.parametrize("values", [numpy.array(["a"]), numpy.empty(0), [object()]])
def test_only_arrays_of_numbers_are_put(values):
    with pytest.raises(ShapeError, match="wanted an array of numbers"):
        RecordForm.of({"x": values})
    with pytest.raises(ShapeError, match="another name than time and weight"):
        RecordForm.of({"time": numpy.ones(1)})


# ---- buffers -------------------------------------------------------------------------------------


def filled(kind, when_full, puts, *, slots=4, weights=None, order=None):
    """Return (buffer, form) after these numbers were put, as far as there was room."""
    form = RecordForm.of({"x": numpy.zeros(1)})
    size = slots * form.record_bytes + 5
    buffer = open_buffer(kind, when_full, size, form.record_bytes, 3)
    assert buffer.records.nbytes <= size
    for number in puts if order is None else order:
        slot = buffer.slot()
        if slot is None:
            break
        weight = 1.0 if weights is None else weights[number]
        record = RecordMemory(form, buffer.records[slot])
        record.write({"x": numpy.full(1, float(number))}, number, 0.0, weight)
        buffer.keep(slot)
    return buffer, form


def numbers_of(buffer, samples):
    assert buffer.can_serve(samples)
    slots = buffer.take(samples)
    numbers = header_of(buffer.records[slots])["number"].tolist()
    buffer.done(slots)
    return numbers


@pytest.mark.parametrize(
    "kind, when_full, kept, dropped",
    [
        ("once", "wait", [0, 1, 2, 3], 0),
        ("once", "drop_oldest", [2, 3, 4, 5], 2),
        ("latest", "drop_oldest", [5, 4, 3, 2], 2),
        ("latest", "wait", [3, 2, 1, 0], 0),
    ],
)
def test_a_full_buffer_does_what_was_chosen(kind, when_full, kept, dropped):
    buffer, _ = filled(kind, when_full, range(6))
    assert numbers_of(buffer, [0, 1, 2, 3]) == kept and buffer.num_dropped == dropped
    assert not buffer.can_serve([4]) and buffer.slot() is not None


def test_a_buffer_that_drops_at_random_keeps_some_of_all():
    buffer, _ = filled("once", "drop_random", range(100))
    kept = numbers_of(buffer, [0, 1, 2, 3])
    assert kept == sorted(set(kept)) and kept[-1] == 99 and min(kept) < 96
    assert buffer.num_dropped == 96


def test_a_sample_is_found_by_its_number_and_older_ones_make_room():
    buffer, _ = filled("once", "wait", range(10, 14))
    assert not buffer.can_serve([14]) and not buffer.can_serve([9])
    assert buffer.num_dropped == 4  # 14 was asked for, so what is before it is not wanted any more
    buffer, _ = filled("once", "wait", range(10, 14))
    assert numbers_of(buffer, [12]) == [12] and buffer.num_dropped == 2


@pytest.mark.thorough
def test_a_reservoir_is_a_fair_selection_whatever_the_order():
    counts = numpy.zeros(40)
    for seed in range(300):
        form = RecordForm.of({"x": numpy.zeros(1)})
        buffer = open_buffer("reservoir", None, 9 * form.record_bytes, form.record_bytes, seed)
        for number in range(40):
            slot = buffer.slot()
            record = RecordMemory(form, buffer.records[slot])
            record.write({"x": numpy.zeros(1)}, number, 0.0, 1 + number % 2)
            buffer.keep(slot)
        kept = sorted({*numbers_of(buffer, range(400))})
        assert len(kept) == 8  # of 400 draws none misses one
        counts[kept] += 1
    light, heavy = counts[::2].sum(), counts[1::2].sum()
    assert 1.5 < heavy / light < 2  # twice the weight, without repeats
    for half in counts[::2], counts[1::2]:
        assert abs(half[:10].sum() / half.sum() - 0.5) < 0.06


def test_a_reservoir_does_not_depend_on_the_order_of_arrival():
    one, _ = filled("reservoir", None, range(40), slots=9)
    other, _ = filled("reservoir", None, range(40), slots=9, order=reversed(range(40)))
    assert numbers_of(one, range(20)) == numbers_of(other, range(20))
    assert numbers_of(one, range(20)) == numbers_of(one, range(20))


# ---- statistics ----------------------------------------------------------------------------------


def test_moments_are_those_of_all_values_and_exact_over_samples():
    generator = numpy.random.default_rng(0)
    samples = {"u": (generator.standard_normal((30, 4, 5)) + 1e6).astype("float32")}
    whole = moments_of(samples)["u"]
    exact = [Fraction(float(value)) for value in samples["u"].ravel()]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    assert abs(whole.mean - float(mean)) < 1e-15 * 1e6
    assert abs(whole.variance - float(variance)) < 1e-9 * float(variance)
    parts = [moments_of({"u": samples["u"][rows]}) for rows in ([4, 29, 0], [*range(1, 4)])]
    parts.append(moments_of({"u": samples["u"][5:29]}))
    assert added(added(parts[2], parts[0]), parts[1]) == {"u": whole}
    assert from_stored(to_stored({"u": whole})) == {"u": whole}


def test_samples_that_are_not_finite_are_counted_apart():
    found = moments_of({"u": numpy.array([[1.0, 3.0], [numpy.nan, 0.0], [numpy.inf, 1.0]])})["u"]
    assert (found.mean, found.variance, found.not_finite) == (2.0, 1.0, 2)
    assert numpy.isnan(FieldMoments().mean) and numpy.isnan(FieldMoments().variance)


# ---- receiving -----------------------------------------------------------------------------------


class Posting:
    """The post of rank 2 of 3, with the messages of the others in a list: (tag, source, bytes)."""

    rank, size, is_closed = 2, 3, False
    peers = SimpleNamespace(missing=lambda needed: None)

    def __init__(self):
        self.messages, self.said = [], []

    def note(self, source, **facts):
        text = numpy.frombuffer(json.dumps(facts).encode(), "uint8")
        length = numpy.array([len(text)]).view("uint8")
        self.messages.append((NOTE_TAG, source, numpy.concatenate([length, text])))

    def send(self, array, to, tag):
        self.said.append((to, json.loads(array[8:].tobytes())["kind"]))
        return SimpleNamespace(is_done=lambda: True)

    def sender(self, tag, source=None):
        found = [each for kind, each, _ in self.messages if kind == tag and source in (None, each)]
        return found[0] if found else None

    def arrival(self, tag, source=None, place=None):
        source = self.sender(tag, source)
        for at, (kind, each, content) in enumerate(self.messages):
            if (kind, each) == (tag, source):
                del self.messages[at]
                fits = place is None or len(place) >= len(content)
                facts = {"source": source, "has_failed": not fits, "is_done": lambda: True}
                return SimpleNamespace(array=content, **facts)
        return None


@pytest.mark.parametrize("when_full", ["wait", "drop_oldest"])
def test_a_record_is_taken_after_the_form_of_its_rank(when_full):
    """It may overtake that in the eyes of a trainer, which has the smaller one of another rank."""
    options = Options(1, "once", 1 << 10, when_full, 0, "solver", None, "raise", 0, 4)
    post, forms = Posting(), [RecordForm.of({"x": numpy.zeros(size)}) for size in (99, 1)]
    record = numpy.zeros(forms[0].record_bytes, "uint8")
    desk = NoteDesk(post)
    receiver = Receiver(desk, Sides.of(2, 3, 1), options)
    try:
        with receiver.attendant.lock:
            post.note(1, kind="form", form=forms[1].text(), first_put=0)
            post.messages.append((RECORD_TAG, 0, record))
        time.sleep(0.05)
        with receiver.attendant.lock:
            assert receiver.form == forms[1] and post.sender(RECORD_TAG) == 0
            post.note(0, kind="form", form=forms[0].text(), first_put=0)
            post.note(0, kind="ends", puts=1, sent=1)
            post.note(1, kind="ends", puts=0, sent=0)
        receiver.attendant.wait(lambda: receiver.is_complete, tuple, "this test")
        assert post.said == [(0, "refuse"), (1, "refuse")]
    finally:
        receiver.attendant.stop()


# ---- long waits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("limit, lines", [(0.01, 1), (60.0, 0)])
def test_a_long_wait_is_told_of_once(monkeypatch, capfd, limit, lines):
    monkeypatch.setattr(attendant, "LONG_SECONDS", limit)
    desk = SimpleNamespace(post=SimpleNamespace(rank=3), check=lambda needed, doing: None)
    ends = time.monotonic() + 0.1
    waiting = attendant.Attendant(desk, lambda: False, lambda: "; put 7 of rank 1 is the next")
    waiting.wait(lambda: time.monotonic() > ends, tuple, "put() number 4")
    said = capfd.readouterr().err
    assert said.count("rank 3 of a coupling waits in put() number 4 for 0.01 s") == lines
    assert said.count("put 7 of rank 1 is the next") == lines
