"""`chat`: a GPT that learns the answers of conversations."""

from dataclasses import dataclass, fields
from functools import partial
from math import exp
from typing import Any

from ..data.conversations import ConversationRows
from ..data.prepare.template import ChatTemplate
from ..data.samples import TRAINING, VALIDATION
from ..data.settings import ChatData, Sources, TextData
from ..errors import ConfigurationError
from ..nn.settings import Model
from ..settings import setting
from .generation import Sample
from .language import Language

_LARGEST_LOSS = 700.0  # whose perplexity a float64 holds


@dataclass(frozen=True, kw_only=True)
class Question(Sample):
    """The answer that is written at the end of a run."""

    prompt: str = setting("Who are you?", "message to answer; \\n is a line end")


class Chat(Language):
    """Conversations in, a GPT out that answers."""

    sections = {"model": Model, "data": ChatData, "sample": Question}
    defaults = {"run.folder": "runs/chat"}

    def __init__(self, settings):
        super().__init__(settings)
        self._question = ""
        domain, slabs = settings.mesh.domain, settings.parallel.domain_slabs
        if settings.data.packing and (domain > 1 or slabs is not None):
            what = "mesh.domain" if domain > 1 else "parallel.domain_slabs"
            raise ConfigurationError(
                f"{what} = {domain if domain > 1 else slabs} cuts each row of tokens, in which "
                "data.packing puts several conversations; set data.packing = false, or leave "
                f"{what} out"
            )

    # ---- data ------------------------------------------------------------------------------------

    def _texts(self):
        data = self.settings.data
        if not data.path:
            raise ConfigurationError(
                "data.path is empty; wanted files of conversations: shardkit prepare --chat"
            )
        shared = {each.name: getattr(data, each.name) for each in fields(Sources)}
        rows = partial(ConversationRows, packs=data.packing)
        return TextData(format="tokens", **shared), rows

    def _take(self, found):
        super()._take(found)
        sample = self.settings.sample
        if sample.tokens != 0:  # what is wrong with it is known before the first step
            template = ChatTemplate.of(found.tokenizer_files, self.settings.data.path[0])
            asked = [{"role": "user", "content": super()._prompt()}]
            self._question = template.written(asked, None, asks=True)[0]

    def _prompt(self):
        return self._question

    def describe_data(self):
        training, held_out = (_described(self.samples(part)) for part in (TRAINING, VALIDATION))
        return f"{training} + {held_out} held out"

    # ---- reports ---------------------------------------------------------------------------------

    def describe_loss(self, loss):
        return f"{super(Language, self).describe_loss(loss)}  (perplexity {_perplexity(loss):.4g})"

    def loss_record(self, loss):
        return {"perplexity": _perplexity(loss)}


def _described(samples: Any) -> str:
    """Return what conversations there are, and how they fill their rows."""
    sources = getattr(samples, "sources", [samples])  # of a mixture
    told = " and ".join(str(source.cut) for source in sources)
    free = sum(source.free_places for source in sources)
    rows = sum(map(len, sources))
    share = free / (rows * sources[0].length)
    return f"{told}, in {rows:,} rows ({share:.1%} free)"


def _perplexity(loss: float) -> float:
    """Return e to the mean loss: of how many tokens that are alike the model would guess."""
    return exp(min(loss, _LARGEST_LOSS))
