"""What a step asks of the GPU: launches, waits of the host, and arrays of other types.

Counted by the stand-in, so a real GPU skips these. The numbers are bounds: whoever adds a launch to
every layer meets them here.
"""

import pytest
from builders import small_gpt, token_batch
from hybrids import hybrid

import shardkit as sk

MOST_LAUNCHES = {"gpt2": 48, "llama": 44}  # of a layer and micro-batch, forward, backward and step


@pytest.fixture
def book(gpu):
    if gpu.is_real:
        pytest.skip("a real GPU keeps no book")
    return gpu.machine


def step_of(book, layers, style="gpt2", **settings):
    """Return (launches by name, places where the host waited) of a second step of two
    micro-batches.
    """

    def on_rank(backend):
        model = hybrid(
            *(backend, (1, 1, 1)),
            policy="ddp",
            device="cuda",
            model=small_gpt(layers=layers, style=style),
            max_gradient_norm=1.0,
            micro_batches=2,
            **settings,
        )
        for step in range(2):
            book.forget()
            model.train(*token_batch(step, 4))
        return dict(book.launches), [place for place, _ in book.host_waits]

    return sk.run_ranks(1, on_rank)[0]


@pytest.mark.emulated
@pytest.mark.parametrize("style", MOST_LAUNCHES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.thorough
def test_a_layer_adds_a_known_number_of_launches_and_no_casts_or_waits(book, style, dtype):
    few, many = [step_of(book, layers, style, compute_dtype=dtype) for layers in (1, 2)]
    more = {name: number - few[0].get(name, 0) for name, number in many[0].items()}
    assert sum(more.values()) / 2 <= MOST_LAUNCHES[style], more
    assert more.get("copy", 0) == 0  # where astype() is counted
    assert not {"cos", "sin", "power"} & set(many[0])  # of tables of rotary positions
    assert len(many[1]) == len(few[1]) == 1, many[
        1
    ]  # loss and norm together; none for sorts of ids
