"""What cuts a twin along the samples' rows or tokens, over torch.distributed (gloo).

    cut(twin)                  # its layers now compute on this rank's part, even parts assumed

A convolution reads the rows beside its own from the ranks beside, a group norm sums moments over
ranks, attention changes the cut from tokens to heads by all-to-all. PyTorch's own context
parallelism (torch.distributed.tensor.experimental) has no form for attention on CPUs: "Operator
aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy".
"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as collectives
import torch.nn.functional as F
from torch import nn
from twins import Attention, turn

ROWS = 2  # the dim of a grid that is cut


class Halo(torch.autograd.Function):
    """One row of each neighbor beside the own ones, zeros at the ends; gradients go back."""

    @staticmethod
    def forward(x):
        first, last = x.narrow(ROWS, 0, 1), x.narrow(ROWS, -1, 1)
        before, after = [each.contiguous(memory_format=form(x)) for each in exchanged(first, last)]
        return torch.cat([before, x, after], ROWS)

    @staticmethod
    def setup_context(context, inputs, output):
        pass

    @staticmethod
    def backward(context, gradient):
        before, own, after = gradient.split([1, gradient.shape[ROWS] - 2, 1], ROWS)
        own = own.contiguous(memory_format=form(gradient))
        from_before, from_after = exchanged(before, after)
        own.narrow(ROWS, 0, 1).add_(from_before)
        own.narrow(ROWS, -1, 1).add_(from_after)
        return own


def form(x):
    """Return the form in memory of a grid."""
    last = torch.channels_last_3d
    return last if x.is_contiguous(memory_format=last) else torch.contiguous_format


def exchanged(to_before, to_after):
    """Return what the ranks before and after have sent; zeros where there is none."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    found = [torch.zeros(each.shape) for each in (to_before, to_after)]
    works = []
    for other, sent, received in ((rank - 1, to_before, found[0]), (rank + 1, to_after, found[1])):
        if 0 <= other <= last:
            operations = [(dist.irecv, received), (dist.isend, sent.contiguous())]
            works += dist.batch_isend_irecv([dist.P2POp(*each, other) for each in operations])
    for work in works:
        work.wait()
    return found


class HaloConvolution(nn.Conv3d):
    def forward(self, x):
        if self.kernel_size[0] == 1:
            return super().forward(x)
        padding = (0, *self.padding[1:])
        return F.conv3d(Halo.apply(x), self.weight, self.bias, self.stride, padding)


class SharedGroupNorm(nn.GroupNorm):
    def forward(self, x):
        parts = x.reshape(x.shape[0], self.num_groups, -1)
        own = torch.stack([parts.mean(2), parts.square().mean(2)])
        mean, square = collectives.all_reduce(own) / dist.get_world_size()
        inverse = torch.rsqrt(square - mean * mean + self.eps)
        mean, inverse = [
            each.repeat_interleave(x.shape[1] // self.num_groups, 1) for each in (mean, inverse)
        ]
        factor = inverse * self.weight
        level = self.bias - mean * factor
        shape = *factor.shape, *[1] * (x.ndim - 2)
        return torch.addcmul(level.view(shape), x, factor.view(shape))


class HeadsAttention(Attention):
    def forward(self, x):
        batch, own, _ = x.shape
        start = dist.get_rank() * own
        q, k, v = [
            projection(x).view(batch, own, -1, self.head_dim).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        ]
        if self.rotary:
            here = slice(start, start + own)
            q, k = [turn(each, self.cos[here], self.sin[here]) for each in (q, k)]
        q, k, v = [moved(each, 1, 2) for each in (q, k, v)]
        y = moved(F.scaled_dot_product_attention(q, k, v, is_causal=True), 2, 1)
        return self.output(y.transpose(1, 2).reshape(batch, own, -1))


def moved(x, from_dim, to_dim):
    """Return x, whole along from_dim and cut along to_dim, the other way round."""
    ranks = dist.get_world_size()
    send = torch.stack(x.chunk(ranks, from_dim)).contiguous()
    received = collectives.all_to_all_single(torch.empty_like(send), send)
    return torch.cat(list(received), to_dim)


CUT = {nn.Conv3d: HaloConvolution, nn.GroupNorm: SharedGroupNorm, Attention: HeadsAttention}


def cut(twin: nn.Module) -> nn.Module:
    """Let the layers of a twin compute on this rank's part of each sample; return it."""
    for layer in twin.modules():
        layer.__class__ = CUT.get(type(layer), type(layer))
    return twin
