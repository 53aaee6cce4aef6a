"""Models without blocks(), whose modules are gathered as they are called, and their batches."""

import numpy

from shardkit import nn
from shardkit.nn import grad, ops

WIDTH = 32


class Merge(nn.Module):
    """A way up: a norm with a skip connection, and a layer over both."""

    def __init__(self, dtype):
        self.norm = nn.LayerNorm(2 * WIDTH, dtype=dtype)
        self.layer = nn.Linear(2 * WIDTH, WIDTH, dtype=dtype)

    def forward(self, x, skip):
        return ops.gelu(self.layer(self.norm(ops.concatenate([x, skip], -1))))


class UNetLike(nn.Module):
    """Down and up with skip connections inside forward, and a parameter of its own around both."""

    def __init__(self, dtype="float32"):
        self.loss = nn.MeanSquaredError()
        self.scale = nn.Parameter(WIDTH, nn.init.Fill(1.0), dtype)
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for _ in range(3))
        self.middle = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.up = nn.ModuleList(Merge(dtype) for _ in range(3))

    def forward(self, x):
        x, skips = x * self.scale, []
        for layer in self.down:
            x = ops.gelu(layer(x))
            skips.append(x)
        x = self.middle(x)
        for merge in self.up:
            x = merge(x, skips.pop())
        return x * self.scale


class Double(nn.Module):
    """Two convolutions."""

    def __init__(self, in_channels, out_channels):
        self.first = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.second = nn.Conv2d(out_channels, out_channels, 3, padding=1)

    def forward(self, x):
        return ops.relu(self.second(ops.relu(self.first(x))))


class UNet(nn.Module):
    """A UNet of convolutions over images [samples, 3, 4 n, 4 n], of channels of 16 and 32."""

    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.enter = nn.Conv2d(3, 16, 1)
        self.encoders = nn.ModuleList([Double(16, 16), Double(16, 32)])
        self.down = nn.ModuleList(nn.Conv2d(size, size, 2, stride=2) for size in (16, 32))
        self.middle = Double(32, 32)
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, size, 2, stride=2) for size in (32, 16)])
        self.decoders = nn.ModuleList([Double(64, 32), Double(32, 16)])
        self.leave = nn.Conv2d(16, 3, 1)

    def forward(self, x):
        x, skips = self.enter(x), []
        for encoder, down in zip(self.encoders, self.down):
            x = encoder(x)
            skips.append(x)
            x = down(x)
        x = self.middle(x)
        for up, decoder in zip(self.up, self.decoders):
            x = decoder(ops.concatenate([up(x), skips.pop()], 1))
        return self.leave(x)


class Odd(nn.Module):
    """What modules may do: a child is called twice, one never, one has its weight read by its
    parent, one shares it; a gradient is taken inside forward, and a buffer observes.
    """

    def __init__(self, dtype="float32"):
        self.loss = nn.MeanSquaredError()
        self.twice = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.never = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.read = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.energy = nn.Sequential(
            nn.Linear(WIDTH, WIDTH, dtype=dtype), nn.Tanh(), nn.Linear(WIDTH, 1, dtype=dtype)
        )
        self.tied = nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.tied.weight = self.twice.weight
        self.mean = nn.Buffer(WIDTH, nn.init.Fill(0.0), dtype)

    def forward(self, x):
        self.mean.observe(ops.mean(x, 0))
        x = ops.tanh(self.twice(ops.tanh(self.twice(x)))) - ops.cast(self.mean, x.dtype)
        x = x @ self.read.weight.T + ops.cast(self.read.bias, x.dtype)
        place = x * 1.0
        with nn.enable_grad():
            if not place.requires_grad:
                place = nn.Tensor(place.array, requires_grad=True)
            (force,) = grad(self.energy(place).sum(), place, create_graph=True)
        return self.tied(x) + force


class Choosing(nn.Module):
    """Calls its layers in an order that depends on the rank or the step."""

    def __init__(self):
        self.loss = nn.MeanSquaredError()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.order = lambda: range(4)

    def forward(self, x):
        for index in self.order():
            x = self.layers[index](x)
        return x


def batch(step, samples=24, dtype="float32"):
    """Return the global batch of a step: x, y [samples, WIDTH]."""
    rng = numpy.random.default_rng(step)
    return rng.standard_normal((2, samples, WIDTH)).astype(dtype)
