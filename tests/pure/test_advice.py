"""Advice of shardkit bench: each rule speaks when its number asks for it, and only then."""

import re

import pytest

from shardkit.testing.task import Language
from shardkit.testing.train import advise, configuration_of

RunConfiguration = configuration_of(Language)


def figures(settings=None, parts=None, **changes):
    """Figures of a step that spends its time on matrix products, with these changes."""
    shares = {
        "products": 0.9,
        "kernels": 0.06,
        "passes": 0.01,
        "optimizer": 0.01,
        "communication": 0.01,
        "idle": 0.0,
        "python": 0.01,
        **(parts or {}),
    }
    shares["products"] += 1 - sum(shares.values())
    return {
        "parts": shares,
        "settings": RunConfiguration().replace(settings or {}).to_dict(),
        "ranks": 2,
        "ranks_per_node": 2,
        "threads_per_rank": 1,
        "cores_per_node": 2,
        "bubble_fraction": 0.2,
        "parameter_count": 2**20,
        "mesh": "pipeline 1 x data 2 x tensor 1",
        "sent_bytes_per_rank": [2**23] * 2,
        "sent_calls_per_rank": [8] * 2,
        "products_alone_seconds": [shares["products"]] * 2,
        "product_flops_per_second_alone": 9e10,
        "large_product_flops_per_second": 1e11,
        "blas_seconds": {},
        **changes,
    }


CASES = {
    "nothing": ({}, "nothing stands out"),
    "more threads than cores": ({"ranks_per_node": 4}, "start 2 ranks"),
    "idle cores": (
        {"cores_per_node": 8},
        "6 of 8 cores do nothing: start 8 ranks, or set run.threads=4",
    ),
    "bubble": ({"parts": {"idle": 0.2}, "settings": {"mesh.pipeline": 2}}, "zb-h1"),
    "uneven stages": (
        {"parts": {"idle": 0.4}, "settings": {"mesh.pipeline": 2}},
        "stage_balance=measured",
    ),
    "a slow rank": ({"parts": {"idle": 0.2}}, "other processes"),
    "fsdp": ({"parts": {"communication": 0.3}}, "if 16 MiB .* parallel.policy=ddp"),
    "ddp": (
        {"parts": {"communication": 0.3}, "settings": {"parallel.policy": "ddp"}},
        "more batch.sequences",
    ),
    "small messages": (
        {"parts": {"communication": 0.3}, "sent_bytes_per_rank": [2**13] * 2},
        "1 KiB per call",
    ),
    "tensor": (
        {"parts": {"communication": 0.3}, "settings": {"mesh.tensor": 2}},
        "fewer tensor ranks",
    ),
    "python": ({"parts": {"python": 0.2}}, "20% of the step is Python"),
    "optimizer": (
        {"parts": {"optimizer": 0.2}, "settings": {"parallel.policy": "ddp"}},
        "policy=zero1",
    ),
    "contention": ({"products_alone_seconds": [0.45] * 2}, "50% of their speed alone"),
    "MKL is faster": (
        {"blas_seconds": {"onednn": [0.8, 0.8], "mkl": [0.7, 0.8]}},
        "blas=mkl would take 17% off",
    ),
    "NumPy's BLAS is faster": (
        {"blas_seconds": {"numpy": [0.7, 0.8]}, "settings": {"parallel.blas": "mkl"}},
        "blas=numpy would",
    ),
    "small products": ({"product_flops_per_second_alone": 3e10}, "30% of a large one's speed"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_speaks_in_its_case_and_no_other_does(case):
    changes, words = CASES[case]
    (sentence,) = advise(figures(**changes))
    assert re.search(words, sentence), sentence
