"""Values that all ranks must have alike: compared as one number, then in words.

rank 0, 1   {"seed": "3", "micro_batches": "2"}       ShardingError on all ranks: micro_batches is
rank 2      {"seed": "3", "micro_batches": "4"}       4 on rank 2, but 2 on ranks 0, 1

Calls that begin so and name themselves, under CALL, meet each other too: rank 0 in save_model() and
rank 1 in train() are told, where they would wait for each other.
"""

import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy

from ..errors import ShardingError
from .failure.agreement import CommonNumber, collectively
from .ranks import in_words

CALL = "the call"  # what a rank does, among what ranks must have alike
SAME_CALLS = "make the same calls in the same order on all ranks"
_MOST_NAMES = 5  # of what else differs


@contextmanager
def alike(
    backend, advice: str = "pass the same on all ranks", call: str = ""
) -> Iterator[dict[str, str]]:
    """Run local work that fills {name: text}, which all ranks must have alike.

    call   that begins here, such as "save_model"; "": one that has begun

    Collective over the backend at the end of the block, as collectively(): one short message tells
    of errors in the block and compares the texts.
    Errors, on all ranks: those of collectively(); ShardingError with the first name under which
    ranks differ, these ranks and both values, and the other names that differ.
    """
    facts = {CALL: call} if call else {}
    number = CommonNumber()
    with collectively(backend, number):
        yield facts
        number.value = zlib.crc32(repr(facts).encode())
    if not number.is_common:
        raise ShardingError(difference(backend.all_gather_object(facts), advice))


def check_same(
    backend, facts: dict[str, str], advice: str = "pass the same on all ranks", call: str = ""
) -> None:
    """Compare what is known under these names with the other ranks. Collective.

    Errors, on all ranks: as alike().
    """
    with alike(backend, advice, call) as mine:
        mine.update(facts)


def facts_of(arguments: dict) -> dict[str, str]:
    """Return {name: text} of arguments that are plain values, for check_same."""
    return {name: repr(value) for name, value in arguments.items()}


def versions(*packages: str) -> dict[str, str]:
    """Return {name: text} of the versions on which trained bits depend, and those of packages.

    A release of Python that corrects another one computes the same.
    """
    own = __name__.partition(".")[0]
    found = {own: sys.modules[own].__version__, "numpy": numpy.__version__}
    found |= {name: _version_of(name) for name in ("numba", *packages)}
    python = "{}.{}".format(*sys.version_info[:2])
    return {f"the version of {name}": each for name, each in {**found, "Python": python}.items()}


def _version_of(package: str) -> str:
    """Return the version in the name of the record of its installation, NAME-VERSION.dist-info.

    As importlib.metadata, whose import would read 25 files on each rank.
    Source: packaging.python.org, "Recording installed projects".
    """
    record = re.compile(rf"{re.escape(package)}-([^-]+)(-.*)?\.(dist|egg)-info", re.IGNORECASE)
    for folder in filter(None, sys.path):
        with suppress(OSError):
            for found in filter(None, map(record.fullmatch, sorted(os.listdir(folder)))):
                return found[1]
    return "unknown"


def difference(everyones: list[dict[str, str]], advice: str) -> str:
    """Return in words what differs in {name: text} of all ranks: other calls, if there are."""
    if len({facts.get(CALL) for facts in everyones}) > 1:
        everyones = [{CALL: facts.get(CALL, "another")} for facts in everyones]
        advice = SAME_CALLS
    names = dict.fromkeys(name for facts in everyones for name in facts)
    differing = {
        name: values
        for name in names
        if len(set(values := [facts.get(name, "missing") for facts in everyones])) > 1
    }
    (first, values), *rest = differing.items()
    others = [name for name, _ in rest]
    also = ", ".join(others[:_MOST_NAMES]) + " ..." * (len(others) > _MOST_NAMES)
    return f"{_in_words(first, values)}; {advice}" + f" (also different: {also})" * bool(others)


def _in_words(name: str, of_ranks: list[str]) -> str:
    """Return who has which value; the usual one comes last."""
    usual, _ = Counter(of_ranks).most_common(1)[0]
    ranks = {
        value: [rank for rank, other in enumerate(of_ranks) if other == value]
        for value in dict.fromkeys(of_ranks)
    }
    others = ", ".join(
        f"{value} on {in_words(holders)}" for value, holders in ranks.items() if value != usual
    )
    return f"{name} is {others}, but {usual} on {in_words(ranks[usual])}"
