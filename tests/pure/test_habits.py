"""What people of PyTorch, NumPy, Lightning and mpi4py type first: what each line gives here.

A line of GIVES is an expression and the text of its value; a line of NAMES an expression, and words
of the error that says what it is called here. docs/porting.md has the table for readers.
"""

import copy  # noqa: F401
import pickle

import numpy as np
import pytest

import shardkit as sk
from shardkit import nn
from shardkit.nn import functional as F
from shardkit.nn import ops  # noqa: F401
from shardkit.testing.task import Language
from shardkit.testing.train import configuration_of

try:
    import torch
except ImportError:
    torch = None

rng = np.random.default_rng(0)
x = rng.standard_normal((2, 4)).astype("float32")
image = rng.standard_normal((2, 3, 8, 8))
sequence = rng.standard_normal((2, 5, 4))
ids = np.array([[1, 2, 3]])
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
t = nn.Tensor([1.0, 2.0, 3.0])


class Net(nn.Module):
    """A model as it is written in PyTorch."""

    def __init__(self, width=8):
        self.up = nn.Linear(4, width)
        self.layers = nn.ModuleDict({"a": nn.Linear(width, width), "b": nn.Dropout(0.1)})
        self.scales = nn.ParameterList([nn.Parameter(np.ones(width)) for _ in range(2)])
        self.register_buffer("shift", np.zeros(width))

    def forward(self, x):
        y = F.gelu(self.up(x)) * self.scales[0] + self.shift
        return self.layers["b"](self.layers["a"](y)) * self.scales[1]


def shape(value):
    return tuple(value.shape)


# What is typed: what its repr is, or begins with.
GIVES = {
    # layers and operations take arrays, lists, numbers and integers
    "shape(nn.Linear(4, 4)(x))": "(2, 4)",
    "nn.Linear(4, 4)(x.astype('float64')).dtype": "dtype('float32')",
    "shape(nn.Linear(4, 4)([[1.0, 2, 3, 4]]))": "(1, 4)",
    "shape(nn.Linear(4, 4, False)(x))": "(2, 4)",
    "shape(net(x))": "(2, 2)",
    "shape(net.predict(x))": "(2, 2)",
    "shape(net(np.ma.masked_array(x)))": "(2, 2)",
    "shape(Net()(x))": "(2, 8)",
    "shape(nn.Conv2d(3, 8, 3, padding=1)(image))": "(2, 8, 8, 8)",
    "shape(nn.BatchNorm2d(3)(image))": "(2, 3, 8, 8)",
    "shape(nn.MaxPool2d(2)(image))": "(2, 3, 4, 4)",
    "shape(nn.Embedding(10, 4)([1, 2]))": "(2, 4)",
    "shape(nn.LSTM(4, 8, batch_first=True)(sequence)[0])": "(2, 5, 8)",
    "shape(nn.MultiheadAttention(4, 2, batch_first=True)(*[sequence] * 3)[0])": "(2, 5, 4)",
    "shape(nn.MultiheadAttention(4, 2)(query=sequence, key=sequence, value=sequence)[0])": "(2, 5",
    "nn.ReLU()([-1.0, 1.0])": "Tensor(array([0., 1.]))",
    "nn.Dropout()(x) is not None": "True",
    "shape(sk.models.MLP([4, 8, 1])(x))": "(2, 1)",
    "shape(sk.models.GPT(16, 8, width=8, layers=1, heads=2)(ids))": "(1, 3, 16)",
    "ops.relu(np.array([-1.0, 1.0]))": "Tensor(array([0., 1.]))",
    "ops.relu(np.array([-1, 1]))": "Tensor(array([0, 1]))",
    "ops.exp(0)": "Tensor(array(1., dtype=float32))",
    "ops.sqrt(np.arange(3)).dtype": "dtype('float32')",
    "ops.softmax(np.ones((1, 2)), dim=-1)": "Tensor(array([[0.5, 0.5]]))",
    "ops.sum(np.ones((2, 3)), axis=1, keepdims=True)": "Tensor(array([[3.],",
    "ops.mean([[1, 2], [3, 4]], 0)": "Tensor(array([2., 3.], dtype=float32))",
    "ops.einsum('ij,jk->ik', np.ones((2, 3)), np.ones((3, 1)))": "Tensor(array([[3.],",
    "ops.cat([np.ones(1), np.zeros(1)])": "Tensor(array([1., 0.]))",
    "shape(ops.conv2d(image, np.ones((1, 3, 3, 3))))": "(2, 1, 6, 6)",
    "F is ops and nn.functional is ops": "True",
    "nn.CrossEntropyLoss()(np.zeros((2, 3)), np.array([0, 1])).item()": "1.09861",
    "nn.MSELoss()(np.ones(3), np.zeros(3))": "Tensor(array(1.))",
    "nn.MSELoss()([1.0, 2.0], [1, 3])": "Tensor(array(0.5))",
    "nn.CrossEntropyLoss()([[0.0, 0.0]], [1]).item()": "0.693147",
    "shape(net(np.asmatrix(x)))": "(2, 2)",
    "np.sum(t)": "Tensor(array(6.))",
    "np.mean(t)": "Tensor(array(2.))",
    "t.sum(axis=0)": "Tensor(array(6.))",
    "np.max(t)": "Tensor(array(3.))",
    "t.max(axis=0).values": "Tensor(array(3.))",
    "np.std(t)": "Tensor(array(0.81649658))",
    "t.var(unbiased=False)": "Tensor(array(0.66666667))",
    "shape(nn.Tensor(np.ones((1, 2))).squeeze(axis=0))": "(2,)",
    "shape(ops.cat([image, image], axis=1))": "(2, 6, 8, 8)",
    "f'{t.mean():.2f} {t.mean()}'": "'2.00 Tensor(array(2.))'",
    # what things print
    "nn.Linear(4, 8)": "Linear(in_features=4, out_features=8)",
    "nn.Linear(4, 8, bias=False, dtype=np.float64)": (
        "Linear(in_features=4, out_features=8, bias=False, dtype='float64')"
    ),
    "nn.Conv2d(3, 8, 3, padding=1)": (
        "Conv2d(in_channels=3, out_channels=8, kernel_size=3, padding=1)"
    ),
    "net": (
        "Sequential(\n  (0): Linear(in_features=4, out_features=8)\n  (1): ReLU()\n"
        "  (2): Linear(in_features=8, out_features=2)\n)"
    ),
    "nn.ModuleList([nn.ReLU(), nn.ReLU()])": "ModuleList(\n  (0-1): 2 x ReLU()\n)",
    "Net(4)": "Net(width=4,\n  (up): Linear(in_features=4, out_features=4)\n",
    "sk.models.MLP([4, 8, 1])": "MLP(sizes=[4, 8, 1],\n",
    "nn.CrossEntropyLoss(label_smoothing=0.1)": "CrossEntropyLoss(label_smoothing=0.1)",
    "nn.HuberLoss()": "HuberLoss()",
    "sk.InMemoryCommunicationBackend(0, 1)": (
        "InMemoryCommunicationBackend(rank 0 of 1, not initialized)"
    ),
    # members of a module
    "list(nn.Linear(4, 8).state_dict())": "['weight', 'bias']",
    "net.load_state_dict(net.state_dict())": "{'missing_names': [], 'unexpected_names': []}",
    "net.eval() is net and net.train(False) is net": "True",
    "net.training": "False",
    "[type(child).__name__ for child in net.children()]": "['Linear', 'ReLU', 'Linear']",
    "list(net.named_children())": "['0', '1', '2']",
    "len(net.modules())": "4",
    "net.zero_grad()": "None",
    "net.apply(lambda module: None) is net": "True",
    "Net().requires_grad_(False).parameters()[0].requires_grad": "False",
    "[*Net().named_buffers()]": "['shift']",
    "[*Net().layers]": "['a', 'b']",
    "len(nn.Sequential(nn.ReLU()).append(nn.Tanh()))": "2",
    "len(nn.ModuleList().append(nn.Tanh()))": "1",
    "shape(nn.Parameter(np.ones((3, 2))))": "(3, 2)",
    "nn.Parameter(np.ones(3)).array": "array([1., 1., 1.], dtype=float32)",
    "shape(nn.Parameter(np.int64(3), nn.init.Fill(1.0)))": "(3,)",
    "shape(nn.Parameter(np.array([3, 2]), nn.init.Fill(1.0)))": "(3, 2)",
    "nn.Parameter(np.ones(3), requires_grad=False).requires_grad": "False",
    "nn.Buffer(np.arange(3)).dtype": "dtype('int64')",
    "nn.Buffer(np.ones(3)).dtype": "dtype('float32')",
    "nn.Linear(2, 2, dtype='bfloat16').weight.dtype.name": "'bfloat16'",
    "hasattr(net, 'to') or hasattr(t, 'device')": "False",
    # copies
    "type(copy.deepcopy(net)).__name__": "'Sequential'",
    "(pickle.loads(pickle.dumps(net))(x).array == net(x).array).all()": "np.True_",
    "(pickle.loads(pickle.dumps(Net().finish(3)))(x).array == Net().finish(3)(x).array).all()": (
        "np.True_"
    ),
    "pickle.loads(pickle.dumps(nn.BatchNorm1d(3))).running_mean.shape": "(3,)",
    "pickle.loads(pickle.dumps(t))": "Tensor(array([1., 2., 3.]))",
    # optimizers
    "sk.AdamW(lr=1e-3, betas=(0.9, 0.95))": "AdamW(lr=0.001, beta1=0.9, beta2=0.95,",
    "sk.Adam(1e-3, betas=[0.8, 0.9]) == sk.Adam(1e-3, 0.8, 0.9)": "True",
    "sk.ShardingConfiguration(backend, optimizer='adamw').optimizer": "AdamW(lr=0.001,",
    "sk.ShardingConfiguration(backend, optimizer='sgd', learning_rate=3).optimizer": "SGD(lr=3",
    "sk.ReductionOperation('SUM')": "<ReductionOperation.SUM: 'sum'>",
    "sk.ReductionOperation('mean')": "<ReductionOperation.AVERAGE: 'average'>",
}
OF_TORCH = {
    "shape(nn.Linear(4, 4)(torch.ones(2, 4)))": "(2, 4)",
    "ops.relu(torch.ones(2))": "Tensor(array([1., 1.], dtype=float32))",
    "nn.Tensor(torch.ones(2))": "Tensor(array([1., 1.], dtype=float32))",
    "shape(net.predict(torch.ones(2, 4)))": "(2, 2)",
    "nn.Linear(4, 8).load_state_dict(torch.nn.Linear(4, 8).state_dict())['missing_names']": "[]",
    "nn.Linear(4, 8, dtype=torch.float64).weight.dtype": "dtype('float64')",
    "shape(nn.Parameter(torch.ones(3)))": "(3,)",
    "nn.MSELoss()(torch.ones(2), torch.zeros(2))": "Tensor(array(1., dtype=float32))",
    "t + torch.ones(3)": "Tensor(array([2., 3., 4.]))",
    "torch.ones(3) - t": "Tensor(array([ 0., -1., -2.]))",
    "t > torch.ones(3)": "Tensor(array([False,  True,  True]))",
    "ops.where(t > 1, t, torch.zeros(3))": "Tensor(array([0., 2., 3.]))",
    "nn.Linear(2, 2, dtype=torch.bfloat16).weight.dtype.name": "'bfloat16'",
}

# What is typed with something of PyTorch that is another thing here.
OF_TORCH_NAMES = {
    "sk.Training(net, loader, folder='r')": (
        sk.ConfigurationError,
        "batch_size is batch.sequences",
    ),
    "sk.Training(net, (loader, loader), folder='r')": (sk.ConfigurationError, "its .dataset"),
    "sk.Training(net, endless(), folder='r')": (sk.ConfigurationError, "read by number"),
    "sk.Training(torch.nn.Linear(2, 1), (x, x), folder='r')": (
        sk.ConfigurationError,
        "state_dict()",
    ),
    "sk.Training(net, (x, x), loss=torch.nn.MSELoss(), folder='r')": (
        sk.ConfigurationError,
        "the loss of this name",
    ),
    "model.train(torch.ones(2, 4).to('meta'), x)": (TypeError, "meta device type"),
    "model.train(torch.ones(2, 4).bfloat16(), x)": (TypeError, "BFloat16"),
    "sk.FSDPModel(torch.nn.Linear(2, 1), model.sharding_configuration)": (
        TypeError,
        "GPT.from_checkpoint(folder)",
    ),
    "sk.ShardingConfiguration(backend, optimizer=torch.optim.SGD([torch.ones(1)]))": (
        sk.ConfigurationError,
        "wanted a rule such as AdamW(lr=1e-3)",
    ),
    "sk.ShardingConfiguration(backend, loss=torch.nn.MSELoss())": (
        sk.ConfigurationError,
        "a Loss such as CrossEntropy()",
    ),
    "nn.Sequential(torch.nn.Linear(2, 2))": (TypeError, "load_state_dict(module.state_dict())"),
    "Holder()": (sk.ConfigurationError, "Holder.inner is a Linear of PyTorch"),
}

# What is typed: the error, and words of what it is here.
NAMES = {
    "net.train()": (sk.ConfigurationError, "ForwardContext(training=True"),
    "net.to('cuda')": (AttributeError, 'device="cuda" of sk.ShardingConfiguration'),
    "net.cuda()": (AttributeError, "ShardingConfiguration"),
    "net.half()": (AttributeError, 'compute_dtype="bfloat16"'),
    "net.register_forward_hook(print)": (AttributeError, "no hooks"),
    "net.fit(x, x)": (AttributeError, "sk.Training"),
    "net.no_such_name": (AttributeError, "no attribute 'no_such_name'"),
    "nn.Linear(4, 4, device='cuda')": (TypeError, "ShardingConfiguration"),
    "nn.Embedding(num_embeddings=3, embedding_dim=4)": (TypeError, "here it is"),
    "nn.Linear(4, 4)(np.ones((2, 4), int))": (sk.ShapeError, "use ops.cast"),
    "nn.Linear(4, 4)(np.ones((2, 5)))": (sk.ShapeError, "wanted x [..., in]"),
    "net(np.ma.masked_greater(x, 0))": (sk.ShapeError, "x.filled(0.0)"),
    "nn.Parameter((3, 2))": (TypeError, "nn.init.Normal"),
    "nn.Parameter(np.ones(3), False)": (TypeError, "wanted an initializer"),
    "nn.Parameter((2.5,), nn.init.Fill(1.0))": (TypeError, "integer"),
    "nn.ModuleDict({'a.b': nn.ReLU()})": (KeyError, "without dots"),
    "nn.ModuleDict({'a': 3})": (TypeError, "wanted a Module"),
    "nn.ParameterList([3])": (TypeError, "wanted a Parameter"),
    "nn.utils.clip_grad_norm_(net.parameters(), 1.0)": (AttributeError, "max_gradient_norm"),
    "nn.SyncBatchNorm(3)": (AttributeError, "nn.BatchNorm2d"),
    "nn.softmax(x)": (AttributeError, "shardkit.nn.ops.softmax"),
    "F.binary_cross_entropy(x, x)": (AttributeError, "with_logits(x, y), of logits, or nn.BCELoss"),
    "F.mse_loss(x, x)": (AttributeError, "nn.MSELoss()(x, y)"),
    "F.batch_norm(image, np.zeros(3), np.ones(3))": (TypeError, "positional"),
    "F.instance_norm(image, np.zeros(3), np.ones(3))": (TypeError, "positional"),
    "sk.SGD(0.1, 0.9)": (TypeError, "positional"),
    "nn.CrossEntropyLoss(reduction='sum')": (sk.ConfigurationError, "total(prediction, y)"),
    "t.to('cuda')": (AttributeError, 'device="cuda"'),
    "t.device": (AttributeError, "ShardingConfiguration"),
    "t.astype('float16')": (AttributeError, "ops.cast"),
    "t.tolist()": (AttributeError, "x.numpy().tolist()"),
    "t.data": (AttributeError, "detach()"),
    "sk.no_grad()": (AttributeError, "shardkit.nn.no_grad"),
    "sk.Tensor": (AttributeError, "shardkit.nn.Tensor"),
    "sk.relu": (AttributeError, "shardkit.nn.ops.relu"),
    "sk.manual_seed(0)": (AttributeError, "seed="),
    "sk.DDP": (AttributeError, "sk.DDPModel"),
    "sk.AdamW(net.parameters(), lr=1e-3)": (TypeError, "optimizer=..."),
    "sk.AdamW(net)": (TypeError, "optimizer=..."),
    "sk.SGD(nn.Linear(2, 2), 0.1)": (TypeError, "optimizer=..."),
    "sk.AdamW(learning_rate=1e-3)": (TypeError, "here it is lr"),
    "sk.AdamW().zero_grad()": (AttributeError, "model.train(x, y)"),
    "sk.AdamW(beta1=0.5, betas=(0.9, 0.95))": (sk.ConfigurationError, "either betas or beta1"),
    "sk.AdamW(betas=0.9)": (sk.ConfigurationError, "two numbers"),
    "sk.ShardingConfiguration(backend, optimizer='adamv')": (sk.ConfigurationError, "adamw"),
    "sk.ReductionOperation('plus')": (ValueError, "plus"),
    "backend.Get_rank()": (AttributeError, "here it is rank"),
    "backend.size": (AttributeError, "world_size"),
    "backend.Allreduce(x)": (AttributeError, "all_reduce"),
    "model(x)": (sk.ShardingError, "model.predict(x)"),
    "model.state_dict()": (AttributeError, "save_model"),
    "model.load_state_dict({})": (AttributeError, "load_model"),
    "model.parameters()": (AttributeError, "wrapped_model.named_parameters()"),
    "model.no_sync()": (AttributeError, "auto_synchronize_gradients"),
    "model.fit(x, x)": (AttributeError, "sk.Training"),
}


@pytest.mark.parametrize(
    "line",
    [
        lambda x: ops.linear(x, np.ones((2, 3))),
        lambda x: ops.softmax(x=x),
        lambda x: ops.pairwise_distance(x, np.zeros((2, 3))),
        lambda x: nn.Linear(3, 2, dtype="float64")(x=x),
        lambda x: nn.MSELoss()(x, [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_a_tensor_beside_an_array_keeps_its_gradient(line):
    x = nn.Tensor(np.ones((2, 3)), requires_grad=True)
    line(x).sum().backward()
    assert x.grad is not None and x.grad.shape == (2, 3)


class Broken:
    """Members whose own lines lack an attribute, by names that mean something else and nothing."""

    @property
    def children(self):
        return self.inner

    @property
    def training(self):
        return np.ones(3).inner

    device = eval = scale = children


BROKEN = {
    kind.__name__: type(f"Broken{kind.__name__}", (Broken, kind), {})
    for kind in (nn.Module, nn.Tensor, sk.SGD, sk.InMemoryCommunicationBackend)
}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("name", ["children", "training", "device", "eval", "scale"])
def test_a_property_that_lacks_something_says_what(kind, name):
    made = BROKEN[kind].__new__(BROKEN[kind])
    with pytest.raises(AttributeError, match="no attribute 'inner'"):
        getattr(made, name)
    assert not hasattr(made, name)


@pytest.fixture(scope="module")
def names():
    """What the lines may name, a sharded model on one rank too."""
    with sk.InMemoryCommunicationBackend(0, 1, environment_id="habits") as backend:
        config = sk.ShardingConfiguration(backend, optimizer="adamw")
        with sk.FSDPModel(sk.models.MLP([4, 8, 1]), config) as model:
            yield {**globals(), "backend": backend, "model": model}


@pytest.mark.parametrize("line", GIVES)
def test_what_is_typed_gives(line, names):
    found = repr(eval(line, names))
    assert found.replace("np.True_", "True").startswith(GIVES[line].replace("np.True_", "True"))


@pytest.mark.parametrize("line", OF_TORCH)
def test_what_pytorch_holds_on_the_host_is_taken(line, names):
    pytest.importorskip("torch")
    assert repr(eval(line, names)).startswith(OF_TORCH[line])


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("line", OF_TORCH_NAMES)
def test_what_pytorch_has_for_another_thing_is_named(line, names):
    data = pytest.importorskip("torch").utils.data

    class Holder(nn.Module):
        def __init__(self):
            self.inner = torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.inner(x)

    mine = {
        "loader": data.DataLoader(data.TensorDataset(torch.ones(8, 4)), batch_size=4),
        "endless": type("Endless", (data.IterableDataset,), {"__iter__": lambda self: iter(())}),
        "Holder": lambda: Holder().finish(0),
    }
    kind, words = OF_TORCH_NAMES[line]
    with pytest.raises(kind) as caught:
        eval(line, {**names, **mine})
    assert words in str(caught.value)


class OnGpu:
    """A tensor of PyTorch on a GPU, as far as it is asked here."""

    __module__, __cuda_array_interface__ = "torch", {}


def test_a_tensor_of_pytorch_on_the_gpu_is_named(names):
    with pytest.raises(sk.DeviceError, match="x is on the GPU; .* or .cpu.. of PyTorch"):
        names["model"].train(OnGpu(), x)


@pytest.mark.parametrize("line", NAMES)
def test_what_is_something_else_here_is_named(line, names):
    kind, words = NAMES[line]
    with pytest.raises(kind) as caught:
        eval(line, names)
    assert words in str(caught.value)


def test_a_sharded_model_says_what_it_is_and_takes_lists_and_arrays_of_pytorch(names):
    model = names["model"]
    text = repr(model)
    assert text.startswith("FSDPModel(MLP(sizes=[4, 8, 1]), 49 parameters, Mesh(")
    assert model.eval() is model
    if torch is not None:
        first = model.evaluate(torch.ones(3, 4), torch.ones(3, 1))
        assert first == model.evaluate(np.ones((3, 4)).tolist(), np.ones((3, 1)))


def test_a_with_block_opens_and_ends_a_backend_and_a_model():
    def rank(backend):
        with backend:
            total = np.full(3, backend.rank + 1.0)
            backend.all_reduce(total, op="sum")
            largest = np.full(2, float(backend.rank))
            backend.iall_reduce(largest, "MAX").wait()
            config = sk.ShardingConfiguration(backend, optimizer="adam")
            with sk.ZeRO2Model(sk.models.MLP([4, 8, 1]), config) as model:
                loss = model.train(x, x[:, :1])
            with pytest.raises(sk.CommunicationError, match="closed"):
                model.train(x, x[:, :1])
            with pytest.raises(ValueError, match="op is 'plus'; wanted a ReductionOperation"):
                backend.all_reduce(total, op="plus")
        return total, largest, loss, backend.is_initialized

    for total, largest, loss, is_initialized in sk.run_ranks(3, rank):
        assert (total == 6).all() and (largest == 2).all() and loss > 0 and not is_initialized


def test_an_error_inside_a_with_block_is_the_one_that_is_raised():
    backend = sk.InMemoryCommunicationBackend(0, 1, environment_id="an error inside")
    with pytest.raises(KeyError, match="mine"), backend:
        raise KeyError("mine")
    assert backend.is_initialized
    backend.shutdown()


def test_a_parameter_whose_values_are_elsewhere_is_not_pickled():
    layer = nn.Linear(2, 2).finish(0)
    layer.weight.release()
    with pytest.raises(sk.ShardingError, match="was released"):
        pickle.dumps(layer)


@pytest.mark.parametrize("key", ["model.vocab", "optimizer.lr", "steps", "model.seq_length"])
def test_a_short_name_of_a_setting_is_answered_with_the_whole_one(key):
    with pytest.raises(sk.ConfigurationError, match="did you mean"):
        configuration_of(Language).key(key)
