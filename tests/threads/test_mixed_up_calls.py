"""Ranks that are not in the same call of a model, or not at the same learning rate."""

import pytest
from model_calls import CALLS, X, Y, fsdp_model, message_of

import shardkit as sk


@pytest.mark.parametrize("usual", CALLS)
def test_a_rank_in_another_call_of_the_model_is_named_on_all_ranks(usual, tmp_path):
    def run(backend):
        model = fsdp_model(backend)
        is_odd = backend.rank == 2
        told = {
            odd: message_of(model, odd if is_odd else usual, tmp_path)
            for odd in CALLS
            if odd != usual
        }
        return told, model.train(X, Y)  # all go on together

    outcomes = sk.run_ranks(3, run)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    for odd, message in outcomes[0][0].items():
        assert message.startswith(f"the call is {odd} on rank 2, but {usual} on ranks 0, 1;"), odd


@pytest.mark.parametrize("change", ["rule", "group", "average"])
def test_a_schedule_that_is_another_one_on_some_rank_is_refused_before_the_step(change):
    def run(backend):
        def rate(step):  # the same function on all ranks, of what each of them knows
            return 0.1 * (backend.rank + 1) if step == 2 else 0.1

        rule, groups = sk.SGD(lr=rate), ()
        if change == "group":
            rule, groups = sk.SGD(lr=0.1), [sk.ParameterGroup("*.bias", rule=sk.SGD(lr=rate))]
        if change == "average":
            rule = sk.EMA(sk.SGD(lr=rate))
        config = sk.ShardingConfiguration(backend, optimizer=rule, parameter_groups=tuple(groups))
        model = sk.DDPModel(sk.models.MLP([3, 4, 1], dtype="float64"), config)
        model.train(X, Y)
        model.train(X, Y)
        before = model.gather_full_parameters()
        with pytest.raises(sk.ShardingError, match="the learning rate is .* on rank 1"):
            model.train(X, Y)
        return (before == model.gather_full_parameters()).all()

    assert all(sk.run_ranks(2, run))


def test_a_schedule_that_fails_on_one_rank_is_an_error_on_all():
    def run(backend):
        def rate(step):
            return -1.0 if step and backend.rank == 1 else 0.1

        model = fsdp_model(backend, rate)
        model.train(X, Y)
        with pytest.raises(sk.ConfigurationError, match="learning rate of step 2"):
            model.train(X, Y)
        return model.step_number

    assert sk.run_ranks(2, run) == [1, 1]
