"""A block may read views of its parameters, such as weight.T: under FSDP their memory is another's
between forward and backward, and the backward finds them in the present one.
"""

import numpy
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

READS = {
    "transposed": lambda x, w: ops.relu(x @ w) @ w.T,
    "permuted": lambda x, w: x @ ops.permute(w, (1, 0)),
    "row": lambda x, w: x * w[2] + w[-1],
    "rows and columns": lambda x, w: x[:, :3] @ w[::2, 3:].T @ w[3:, ::-1],
    "spread": lambda x, w: x * w[1].expand(len(x), 6),
    "halves": lambda x, w: ops.cat([x @ half.T for half in ops.split(w, 2)], 1),
    "flipped": lambda x, w: x @ ops.flip(w, (0,)),
    "einsum": lambda x, w: ops.einsum("bi,oi->bo", x, w),
    "norm": lambda x, w: ops.layer_norm(x, w[0], w[1]),
    "kernel": lambda x, w: ops.conv1d(x.unsqueeze(1), w.reshape(6, 1, 6)).squeeze(2),
    "copy of a view": lambda x, w: x @ w.T.reshape(36).reshape(6, 6),
    "without a gradient": lambda x, w: x @ w + x @ w.detach().T,
}
X, Y = numpy.random.default_rng(0).normal(size=(2, 8, 6)).astype("float32")


class Reading(nn.Module):
    def __init__(self, name):
        self.name, self.weight = name, nn.Parameter((6, 6), nn.init.Normal(0.4))

    def forward(self, x):
        return READS[self.name](x, self.weight)


def trained(name, strategy, num_ranks, **settings):
    def run(backend):
        net = nn.Sequential(nn.Linear(6, 6), Reading(name), nn.Linear(6, 6))
        settings_ = {"loss": nn.MSELoss(), "minimum_parameter_group_size": 8, **settings}
        micro_batches = 2 // num_ranks
        config = sk.ShardingConfiguration(backend, micro_batches=micro_batches, **settings_)
        model = strategy(net, config)
        for _ in range(2):
            model.train(*sk.split_batch(model.mesh, X, Y))
        return model.gather_full_parameters()

    return sk.run_ranks(num_ranks, run)[0]


@pytest.mark.parametrize("name", READS)
def test_shards_train_as_a_whole_model_does(name):
    wanted = trained(name, sk.DDPModel, 1)
    assert (trained(name, sk.FSDPModel, 2) == wanted).all()
    assert abs(wanted - wanted[0]).max() > 0


def test_half_floats_are_viewed_in_the_memory_that_is_lent():
    settings = {"compute_dtype": "float16"}
    wanted = trained("transposed", sk.DDPModel, 1, **settings)
    assert (trained("transposed", sk.FSDPModel, 2, **settings) == wanted).all()


def test_a_change_in_place_of_the_parameter_is_told_by_a_view():
    weight = nn.Parameter(numpy.ones((2, 3)))
    loss = (nn.Tensor(numpy.ones((1, 3), "float32"), requires_grad=True) @ weight.T).sum()
    with nn.no_grad():
        weight.mul_(2)
    with pytest.raises(sk.AutogradError, match="changed in place"):
        loss.backward()


def test_a_view_is_that_of_the_memory_a_parameter_is_bound_to():
    weight = nn.Parameter(numpy.arange(6).reshape(2, 3))
    weight.bind(weight.array)
    views = [weight.T, weight[1], weight[:, ::-1], weight.detach(), weight.T[1:]]
    old = [view.array.copy() for view in views]
    weight.bind(weight.array + 10)
    for view, values in zip(views, old, strict=True):
        assert view.shape == values.shape and (view.array == values + 10).all()
