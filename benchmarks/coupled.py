"""Measure what a coupling costs its solver: ratios of CPU time, paired and alternating, and memory.

    mpiexec -n 2 python benchmarks/coupled.py

put       of 8 MB, in units of a copy of its array, with what is left to do before the next one
steps     of a solver of 1024 x 1024 points that puts 64 KB in each, in units of a step without a
          put, while the trainer trains; and the milliseconds of a step, and of what a put adds;
          steps of two lengths, with their sweeps over the points
buffer    bytes over 10,000 puts, and by how much the trainer's memory has grown since the 1,000th
"""

import json
import resource
import time
from statistics import median

import numpy

import shardkit as sk

PUT_BYTES, PUTS = 8 << 20, 40
STEP_BYTES, STEPS, SWEEPS = 64 << 10, 200, (8, 3)
SMALL_BYTES, MANY, LIMIT = 4 << 10, 10_000, 1 << 20
BATCH = 4
REST_SECONDS = 0.05  # in which a trainer takes what was put


def cpu_seconds(call):
    """Return the CPU seconds of this thread in a call."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def field(size):
    """Return an array of so many bytes of float32."""
    return numpy.random.default_rng(0).standard_normal(size // 4, dtype="float32")


def put_over_copy(c):
    """Return CPU of puts over that of copies into one array, [put alone, with rest]."""
    x, target = field(PUT_BYTES), numpy.zeros(PUT_BYTES // 4, "float32")
    alone, whole = [], []
    for _ in range(PUTS):
        copied = cpu_seconds(lambda: numpy.copyto(target, x))
        put = cpu_seconds(lambda: c.put(x=x))
        time.sleep(REST_SECONDS)
        rest = cpu_seconds(lambda: c.is_training)  # messages that go on in the next call
        alone.append(put / copied)
        whole.append((put + rest) / copied)
    settled = slice(4, None)  # records have been touched by then
    return {"put": median(alone[settled]), "put_and_rest": median(whole[settled])}


def step_over_step(c):
    """Return what step_of() does, of steps of two lengths."""
    return {"steps": [step_of(c, sweeps) for sweeps in SWEEPS]}


def step_of(c, sweeps):
    """Return CPU of steps that put over that of steps that do not."""
    u, x = field(4 << 20).reshape(1024, 1024), field(STEP_BYTES)

    def step():
        for _ in range(sweeps):
            u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] - 2 * u[1:-1, 1:-1])

    def step_and_put():
        step()
        c.put(x=x)

    pairs = [(cpu_seconds(step), cpu_seconds(step_and_put)) for _ in range(STEPS)]
    ratio = median(with_put / without for without, with_put in pairs)
    found = {
        "sweeps": sweeps,
        "step": ratio,
        "step_ms": 1e3 * median(without for without, _ in pairs),
    }
    return {**found, "added_ms": 1e3 * median(b - a for a, b in pairs)}


def many_puts(c):
    """Put many small samples."""
    x = field(SMALL_BYTES)
    for _ in range(MANY):
        c.put(x=x)
    return {}


def drain(c, trains):
    """Return bytes of the buffer, and what memory grew by since a tenth was read."""
    size = 64
    model = sk.FSDPModel(sk.models.MLP([size, 64, size]), sk.ShardingConfiguration(c.backend))
    early = None
    for number, (x, _) in enumerate(c.batches(model, BATCH, y="x")):
        if trains:
            model.train(x[:, :size], x[:, :size])
        if number == MANY // BATCH // 10:
            early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if early is None:
        return {}
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early) * 1024
    return {"buffer_bytes": c.report()["buffer_bytes"], "limit": LIMIT, "grown_bytes": grown}


def take(c, trains):
    """Take all puts, and read none."""
    while c.report()["received"] < PUTS:
        time.sleep(REST_SECONDS)
    return {}


def measure(solve, *, read=drain, trains=False, **options):
    """Return what this side found of a coupling of the last rank and the others."""
    with sk.coupled(None, 1, **options) as c:
        found = solve(c) if c.is_solver else read(c, trains)
        c.finish()
        return found


def main():
    """Print what each rank has found."""
    found = measure(put_over_copy, read=take, buffer="latest", buffer_bytes=4 * PUT_BYTES + 4096)
    found |= measure(step_over_step, trains=True, buffer="latest")
    found |= measure(many_puts, buffer_bytes=LIMIT)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
