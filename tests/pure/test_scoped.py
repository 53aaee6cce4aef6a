"""What holds inside a block holds there alone, however the block ends."""

import threading

import pytest

from shardkit import nn


def test_a_function_that_calls_itself_leaves_the_caller_as_it_was():
    @nn.no_grad()
    def down(depth):
        return [nn.is_grad_enabled(), *(down(depth - 1) if depth else ())]

    assert down(2) == [False, False, False]
    assert nn.is_grad_enabled()


def test_an_error_ends_the_block_too():
    with pytest.raises(KeyError), nn.no_grad():
        raise KeyError("inside")
    assert nn.is_grad_enabled()


def test_another_thread_does_not_see_it():
    seen = []
    with nn.no_grad():
        other = threading.Thread(target=lambda: seen.append(nn.is_grad_enabled()))
        other.start()
        other.join()
        assert not nn.is_grad_enabled()
    assert seen == [True]
