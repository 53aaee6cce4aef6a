"""A GAN that learns points on a ring: two networks, two losses and two rules, in one checkpoint.

mpiexec -n 2 python examples/gan.py
"""

import numpy

import shardkit as sk
from shardkit import nn
from shardkit.nn import ops

STEPS = 300


class GAN(nn.Module):
    def __init__(self):
        self.generator = sk.models.MLP([4, 32, 32, 2])
        self.discriminator = sk.models.MLP([2, 64, 64, 1])

    def forward(self, x):
        noise, real = x
        fake = self.generator(noise)
        return {"points": fake, "fake": self.discriminator(fake), "real": self.discriminator(real)}


def discriminator_loss(found, y):
    return ops.softplus(found["fake"]).mean() + ops.softplus(-found["real"]).mean()


def generator_loss(found, y):
    return ops.softplus(-found["fake"]).mean()


def batch(step, samples=256):
    numbers = numpy.random.default_rng(step)
    angle, noise = numbers.uniform(0, 6.2832, samples), numbers.normal(size=(samples, 4))
    real = numpy.stack([numpy.cos(angle), numpy.sin(angle)], 1)
    return tuple(map(numpy.float32, (noise, real))), numpy.zeros(samples)


def main():
    backend = sk.MPICommunicationBackend()
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.Adam(lr=2e-3, beta1=0.5),
        parameter_groups=(sk.ParameterGroup("generator.*", rule=sk.AdamW(lr=1e-3, beta1=0.5)),),
        loss=nn.Objectives({"discriminator": discriminator_loss, "generator": generator_loss}),
    )
    model = sk.FSDPModel(GAN(), config)
    for step in range(STEPS):
        model.train(*sk.split_batch(model.mesh, *batch(step)))  # a step of each, in this order
    points = model.predict(batch(STEPS)[0])["points"]
    radius = numpy.linalg.norm(points, axis=1)
    if model.rank == 0:
        print(f"radius {radius.mean():.2f} +- {radius.std():.2f}")
    model.save_model("runs/gan")


if __name__ == "__main__":
    main()
