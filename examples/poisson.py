"""A physics-informed network: u'' = -pi^2 sin(pi x) on [-0.5, 1], u = sin(pi x) at both ends.

    mpiexec -n 4 python examples/poisson.py                  fsdp: layers are sharded
    mpiexec -n 4 python examples/poisson.py pipeline 600     a layer on each rank, and the steps

The loss reads u and u'' from the rows of nn.Derivatives (docs/second-derivatives.md). After 600
steps, half a minute, the largest error is printed; above 1e-2 the job ends with exit code 1.
"""

import sys

import numpy

import shardkit as sk
from shardkit import nn

STEPS, LARGEST_ERROR = 600, 1e-2
KINDS = {"fsdp": sk.FSDPModel, "pipeline": sk.PipelineParallelModel}


def exact(x):
    return numpy.sin(numpy.pi * x)


def loss(rows, y):
    """Return the mean squared residual inside, and 100 times the squared error at the ends.

    rows  [samples, 3, 1]: u, u', u''; y [samples, 3]: source, value, whether it is an end
    """
    y = nn.Tensor(y)
    is_end = y[:, 2:]
    residual = (rows[:, 2] - y[:, :1]) * (1 - is_end)
    error = (rows[:, 0] - y[:, 1:2]) * is_end
    return (residual**2 + 100 * error**2).mean()


def main(kind="fsdp", steps=STEPS):
    backend = sk.MPICommunicationBackend()
    x = numpy.linspace(-0.5, 1, 64).reshape(-1, 1)
    is_end = (x == x[0]) | (x == x[-1])
    y = numpy.concatenate([-(numpy.pi**2) * exact(x), exact(x), is_end], 1)
    net = nn.Derivatives(sk.models.MLP([1, 24, 24, 24, 1], "tanh", dtype="float64"), order=2)
    net.loss = loss
    config = sk.ShardingConfiguration(
        backend,
        optimizer=sk.Adam(lr=5e-3),
        minimum_parameter_group_size=16,
        micro_batches=4 if kind == "pipeline" else 1,
    )
    model = KINDS[kind](net.finish(), config)
    batch = sk.split_batch(model.mesh, x, y)
    for step in range(int(steps)):
        value = model.train(*batch)
        if step % 100 == 99 and backend.rank == 0:
            print(f"step {step + 1}: loss {value:.2e}", flush=True)
    error = abs(model.predict(x)[:, 0] - exact(x)).max()
    if backend.rank == 0:
        print(f"largest error {error:.1e}, wanted at most {LARGEST_ERROR:.0e}")
    backend.close()
    return 0 if error <= LARGEST_ERROR else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
