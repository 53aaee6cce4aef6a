"""The examples in docstrings of public names give what stands there."""

import doctest
import inspect

import numpy as np
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

NAMES = {"np": np, "sk": sk, "nn": nn, "ops": ops}
NAMESPACES = (sk, sk.nn, sk.nn.ops, sk.models, sk.schedules)
FEWEST = 15


def examples():
    """Return {name: doctest} of the public names that have examples."""
    parser, found = doctest.DocTestParser(), {}
    for namespace in NAMESPACES:
        for name in namespace.__all__:
            text = inspect.getdoc(getattr(namespace, name)) or ""
            if ">>>" in text:
                found[name] = parser.get_doctest(text, dict(NAMES), name, None, 0)
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(name):
    said = []
    doctest.DocTestRunner().run(EXAMPLES[name], out=said.append, clear_globs=False)
    assert not said, "".join(said)


def test_there_are_examples():
    assert len(EXAMPLES) >= FEWEST
