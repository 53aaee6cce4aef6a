"""The models of sk.models as PyTorch users write them, with the same parameters under the same
names (see twins.py).

    twin = problem.made_by(TWINS.__getitem__)
    twin.load_state_dict(weights)
    loss = twin.loss(twin(x), y)
"""

import torch
import torch.nn.functional as F
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


class Named(nn.Module):
    """A module with one layer of this name: the names are those of our model."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)


class NormedConvolution(nn.Module):
    def __init__(self, dims, before, after, kernel, stride=1):
        super().__init__()
        padding = kernel // 2
        self.conv = CONVOLUTIONS[dims - 1](before, after, kernel, stride, padding, bias=False)
        self.norm = BATCH_NORMS[dims - 1](after)

    def forward(self, x):
        return self.norm(self.conv(x))


class ResidualBlock(nn.Module):
    def __init__(self, dims, before, after, stride):
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                NormedConvolution(dims, before, after, 3, stride),
                NormedConvolution(dims, after, after, 3),
            ]
        )
        changes = stride > 1 or before != after
        self.shortcut = NormedConvolution(dims, before, after, 1, stride) if changes else None

    def forward(self, x):
        first, second = self.convolutions
        y = second(F.relu(first(x), inplace=True))
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, in_channels, classes, width, small_images, layers=(2, 2, 2, 2), dims=2):
        super().__init__()
        assert small_images
        self.stem = Named(map=NormedConvolution(dims, in_channels, width, 3))
        self.stages = nn.ModuleList()
        before = width
        for stage, count in enumerate(layers):
            after = width * 2**stage
            blocks = [
                ResidualBlock(
                    dims, before if not at else after, after, 2 if stage and not at else 1
                )
                for at in range(count)
            ]
            self.stages.append(nn.ModuleList(blocks))
            before = after
        self.head = Named(map=nn.Linear(before, classes))

    def parts(self):
        return [self.stem, *[block for blocks in self.stages for block in blocks], self.head]

    def forward(self, x):
        x = F.relu(self.stem.map(x), inplace=True)
        for blocks in self.stages:
            for block in blocks:
                x = block(x)
        return self.head.map(x.flatten(2).mean(2))

    loss = staticmethod(F.cross_entropy)


class Level(nn.Module):
    def __init__(self, dims, before, after, groups):
        super().__init__()
        convolve = CONVOLUTIONS[dims - 1]
        self.first = convolve(before, after, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, after)
        self.second = convolve(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, after)

    def forward(self, x):
        x = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(self.second_norm(self.second(x)), inplace=True)


class Doubling(nn.Module):
    def __init__(self, dims, channels, groups):
        super().__init__()
        self.double = TRANSPOSED[dims - 1](2 * channels, channels, 2, stride=2)
        self.level = Level(dims, 2 * channels, channels, groups)

    def forward(self, x, skip):
        double = self._modules["double"]  # Module.double is another thing
        return self.level(torch.cat([skip, double(x)], 1))


class UNet(nn.Module):
    def __init__(self, in_channels, out_channels, dims, width, depth=3, groups=8):
        super().__init__()
        self.halve = MAX_POOLS[dims - 1]
        widths = [width * 2**level for level in range(depth + 1)]
        self.enter = Level(dims, in_channels, width, groups)
        pairs = zip(widths, widths[1:])
        self.down = nn.ModuleList(Level(dims, above, below, groups) for above, below in pairs)
        self.up = nn.ModuleList(Doubling(dims, channels, groups) for channels in widths[:-1])
        self.project = CONVOLUTIONS[dims - 1](width, out_channels, 1)

    def parts(self):
        return [self.enter, *self.down, *self.up, self.project]

    def forward(self, x):
        x = self.enter(x)
        skips = []
        for level in self.down:
            skips.append(x)
            x = level(self.halve(x, 2))
        for doubling in reversed(self.up):
            x = doubling(x, skips.pop())
        return self.project(x)

    loss = staticmethod(F.mse_loss)


class ChannelLinear(nn.Linear):
    """A linear map of channels at each point of x [batch, in, *grid]: a convolution of 1."""

    def forward(self, x):
        convolve = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        return convolve(x, self.weight.reshape(*self.weight.shape, *[1] * (x.ndim - 2)), self.bias)


class SpectralConv(nn.Module):
    """As in the paper's code: a whole transform, of which the corners are multiplied."""

    def __init__(self, width, modes):
        super().__init__()
        kept = [2 * m for m in modes[:-1]] + [modes[-1]]
        self.modes = modes
        self.weight = nn.Parameter(torch.empty(width, width, *kept, 2))

    def forward(self, x):
        dims = tuple(range(2, x.ndim))
        weight = torch.view_as_complex(self.weight)
        spectrum = torch.fft.rfftn(x, dim=dims)
        out = torch.zeros_like(spectrum)
        for corner in self.corners():
            part = (slice(None), slice(None), *corner)
            out[part] = torch.einsum("bi...,io...->bo...", spectrum[part], weight[part])
        return torch.fft.irfftn(out, s=x.shape[2:], dim=dims)

    def corners(self):
        """Yield the slices of the kept frequencies: both ends of all dims but the last."""
        corners = [(slice(self.modes[-1]),)]
        for m in reversed(self.modes[:-1]):
            ends = slice(m), slice(-m, None)
            corners = [(end, *corner) for end in ends for corner in corners]
        return corners


class FourierLayer(nn.Module):
    def __init__(self, width, modes, has_activation):
        super().__init__()
        self.spectral = SpectralConv(width, modes)
        self.pointwise = ChannelLinear(width, width)
        self.has_activation = has_activation

    def forward(self, x):
        y = self.spectral(x) + self.pointwise(x)
        return F.gelu(y) if self.has_activation else y


class FNO(nn.Module):
    def __init__(self, in_channels, out_channels, modes, width, layers=4):
        super().__init__()
        self.lift = Named(map=ChannelLinear(in_channels + len(modes), width))
        self.layers = nn.ModuleList(
            FourierLayer(width, modes, index < layers - 1) for index in range(layers)
        )
        self.project = Named(up=ChannelLinear(width, 128), down=ChannelLinear(128, out_channels))

    def parts(self):
        return list(self.layers)

    def forward(self, x):
        lines = [torch.linspace(0, 1, size) for size in x.shape[2:]]
        grids = torch.meshgrid(*lines, indexing="ij")
        x = torch.cat([x, *[grid.expand(len(x), 1, *grid.shape) for grid in grids]], 1)
        x = self.lift.map(x)
        for layer in self.layers:
            x = layer(x)
        return self.project.down(F.gelu(self.project.up(x)))

    @staticmethod
    def loss(prediction, y):
        apart = (prediction - y).flatten(1).norm(dim=1)
        return (apart / y.flatten(1).norm(dim=1)).mean()


class LSTM(nn.Module):
    def __init__(self, features, out_features, width, layers=2):
        super().__init__()
        self.layers = nn.ModuleList(
            Named(lstm=nn.LSTM(width if index else features, width, batch_first=True))
            for index in range(layers)
        )
        self.head = Named(map=nn.Linear(width, out_features))

    def parts(self):
        return [layer.lstm for layer in self.layers]

    def forward(self, x):
        for layer in self.layers:
            x, _ = layer.lstm(x)
        return self.head.map(x[:, -1])

    loss = staticmethod(F.mse_loss)


class EncoderBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        names = ("query", "key", "value", "output")
        self.attention = Named(**{name: nn.Linear(width, width) for name in names})
        self.mlp_norm = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Named(up=nn.Linear(width, 4 * width), down=nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.attention_norm(x)
        maps = self.attention
        q, k, v = [
            each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (maps.query, maps.key, maps.value)
        ]
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + maps.output(y.transpose(1, 2).flatten(2))
        y = F.gelu(self.mlp.up(self.mlp_norm(x)), approximate="tanh")
        return x + self.mlp.down(y)


class PatchEmbedding(nn.Module):
    def __init__(self, side, patch, width):
        super().__init__()
        self.patch = patch
        self.patches = nn.Linear(3 * patch * patch, width)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1 + (side // patch) ** 2, width))

    def forward(self, x):
        kernel = self.patches.weight.unflatten(1, (3, self.patch, self.patch))
        x = F.conv2d(x, kernel, self.patches.bias, self.patch).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(x), 1, -1), x], 1) + self.positions


class ViT(nn.Module):
    def __init__(self, image_size, patch_size, classes, width, depth, heads):
        super().__init__()
        self.embedding = PatchEmbedding(image_size, patch_size, width)
        self.layers = nn.ModuleList(EncoderBlock(width, heads) for _ in range(depth))
        self.head = Named(norm=nn.LayerNorm(width, eps=1e-6), map=nn.Linear(width, classes))

    def parts(self):
        return list(self.layers)

    def forward(self, x):
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head.map(self.head.norm(x[:, 0]))

    loss = staticmethod(F.cross_entropy)


class Step(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, width)

    def forward(self, rows, senders, receivers):
        ends = rows.index_select(0, senders), rows.index_select(0, receivers)
        messages = F.silu(self.message(torch.cat(ends, 1)))
        heard = torch.zeros_like(rows).index_add(0, receivers, messages)
        return rows + self.out(F.silu(self.update(torch.cat([rows, heard], 1))))


class MessagePassing(nn.Module):
    def __init__(self, features, out_features, width, steps, senders, receivers):
        super().__init__()
        ends = torch.stack([torch.from_numpy(senders), torch.from_numpy(receivers)])
        self.register_buffer("ends", ends, persistent=False)
        self.encode = Named(map=nn.Linear(features, width))
        self.steps = nn.ModuleList(Step(width) for _ in range(steps))
        self.decode = Named(map=nn.Linear(width, out_features))

    def parts(self):
        return list(self.steps)

    def forward(self, x):
        batch, nodes, _ = x.shape
        first = torch.arange(batch)[:, None] * nodes
        senders, receivers = [(end + first).flatten() for end in self.ends]
        rows = F.silu(self.encode.map(x)).flatten(0, 1)
        for step in self.steps:
            rows = step(rows, senders, receivers)
        return self.decode.map(rows).unflatten(0, (batch, nodes))

    loss = staticmethod(F.mse_loss)


class MLP(nn.Module):
    def __init__(self, sizes, activation):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(sizes, sizes[1:]))
        self.activation = getattr(F, activation)

    def parts(self):
        return list(self.layers)

    def forward(self, x):
        *layers, last = self.layers
        for layer in layers:
            x = self.activation(layer(x))
        return last(x)

    loss = staticmethod(F.mse_loss)


TWINS = {
    "ResNet": ResNet,
    "UNet": UNet,
    "FNO": FNO,
    "LSTM": LSTM,
    "ViT": ViT,
    "MessagePassing": MessagePassing,
    "MLP": MLP,
}
