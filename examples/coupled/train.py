"""The trainers of heat.c, heat.f90 and heat.py: a surrogate of a step, trained while they run.

mpiexec -n 3 ./heat : -n 1 python train.py
"""

import shardkit as sk

BATCH = 12

with sk.coupled(trainers=1) as c:
    config = sk.ShardingConfiguration(c.backend, optimizer=sk.Adam(lr=1e-2))
    model = sk.FSDPModel(sk.models.MLP([6 * 8, 4 * 8]), config)
    for x, y in c.batches(model, BATCH):  # x [n, 6, 8], y [n, 4, 8]
        loss = model.train(x.reshape(len(x), -1), y.reshape(len(y), -1))
        c.publish(model)
        c.steer(loss=loss)
        print(f"trained step {model.step_number}: loss {loss!r}", flush=True)
