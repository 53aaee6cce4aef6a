"""Publishing: images of a model go to the solver ranks that predict, or wait on the trainer."""

import numpy

from ..parallel.model.sharded_model import ShardedModel
from .newest import NewestModel, from_note, to_note
from .receiving import Receiver


class Publisher:
    """One trainer's part."""

    def __init__(self, receiver: Receiver, newest: NewestModel):
        self._receiver, self._newest = receiver, newest
        self._wanted_by: set[int] = set()  # ranks that wait for a newer model
        self._asked: list[tuple] = []
        receiver.desk.listen(wants_model=self._note_want, ask=self._note_ask)

    def publish(self, model: ShardedModel) -> None:
        """Take the model's weights. Collective over the trainers."""
        image = model.serialize()
        with self._receiver.attendant.lock:
            self._newest.take(image, self._newest.number + 1)
            for rank in sorted(self._wanted_by):
                self._send(rank)
            asked, self._asked = self._asked, []
        for question in asked:
            self._answer(*question)

    def _send(self, rank: int):
        """Send the newest model; the rank asks again when it has it, so only one is under way."""
        self._wanted_by.discard(rank)
        body = numpy.frombuffer(self._newest.image, numpy.uint8)
        self._receiver.desk.tell(rank, "model", body, number=self._newest.number)

    def _note_want(self, source, facts, body):
        self._wanted_by.add(source)
        if self._newest.number > facts["after"]:
            self._send(source)

    def _note_ask(self, source, facts, body):
        question = source, facts.pop("call"), from_note(facts, body)
        if self._newest.number:
            self._receiver.attendant.jobs.append(lambda: self._answer(*question))
        else:
            self._asked.append(question)

    def _answer(self, rank: int, call: int, x):
        """Compute the output, beside what the trainer does, and send it."""
        try:
            facts, body = to_note(self._newest.predict(x))
        except Exception as error:  # raised where it was asked: the training goes on
            why = f"predict() on the trainer: {type(error).__name__}: {error}"
            self._receiver.tell(rank, "no_model", call=call, why=why)
        else:
            self._receiver.tell(rank, "answer", body, call=call, **facts)
