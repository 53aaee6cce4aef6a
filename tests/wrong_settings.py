"""What one rank passes wrong while the others pass it right, for any backend.

MADE["micro_batches"](backend, is_wrong)     makes a model of a setting that is wrong on some ranks
CALLED["train: no samples"](model, is_wrong) calls a model of two features with it
Each raises on all ranks; the words that the message must have stand beside it.
"""

import numpy

import shardkit as sk

SIZES = (2, 4, 3)


def mlp(**changes):
    return sk.models.MLP(SIZES, **changes)


def batch(size=6):
    return numpy.ones((size, 2), "float32"), numpy.zeros((size, 3), "float32")


def of_setting(name, wrong):
    """Return what makes a model of a configuration in which this setting is wrong."""

    def make(backend, is_wrong):
        return sk.FSDPModel(
            mlp(), sk.ShardingConfiguration(backend, **({name: wrong} if is_wrong else {}))
        )

    return make


def of_rule(rule, **wrong):
    """Return what makes a model whose rule has a wrong constant."""

    def make(backend, is_wrong):
        made = rule(**(wrong if is_wrong else {}))
        return sk.FSDPModel(mlp(), sk.ShardingConfiguration(backend, optimizer=made))

    return make


def of_schedule(schedule, right, wrong):
    def make(backend, is_wrong):
        rule = sk.AdamW(lr=schedule(**(wrong if is_wrong else right)))
        return sk.DDPModel(mlp(), sk.ShardingConfiguration(backend, optimizer=rule))

    return make


def of_group(*names, **wrong):
    def make(backend, is_wrong):
        group = sk.ParameterGroup(*names, **wrong) if is_wrong else sk.ParameterGroup("*.bias")
        config = sk.ShardingConfiguration(backend, optimizer=sk.AdamW(), parameter_groups=(group,))
        return sk.ZeRO1Model(mlp(), config)

    return make


def of_hybrid(**wrong):
    def make(backend, is_wrong):
        config = sk.ShardingConfiguration(backend)
        return sk.HybridShardedModel(mlp(), config, **(wrong if is_wrong else {}))

    return make


def of_optimizer(optimizer=sk.AdamW, **wrong):
    def make(backend, is_wrong):
        rule = optimizer() if not is_wrong or wrong else optimizer(lr=-1)
        config = sk.ShardingConfiguration(backend)
        return sk.DDPOptimizer(rule, config, model=mlp(), **(wrong if is_wrong else {}))

    return make


SCHEDULES = sk.schedules
MADE = {
    "micro_batches": (of_setting("micro_batches", 0), "micro_batches = 0"),
    "micro_batches: text": (of_setting("micro_batches", "2"), "micro_batches = '2'"),
    "learning_rate": (of_setting("learning_rate", -0.1), "learning_rate = -0.1"),
    "optimizer": (of_setting("optimizer", sk.AdamW), "optimizer = "),
    "loss": (of_setting("loss", 3), "loss = 3"),
    "max_gradient_norm": (of_setting("max_gradient_norm", -1.0), "max_gradient_norm = -1.0"),
    "parameter_groups": (of_setting("parameter_groups", ("*",)), "parameter_groups"),
    "auto_synchronize_gradients": (
        of_setting("auto_synchronize_gradients", 2),
        "auto_synchronize_gradients = 2",
    ),
    "tensor_plan": (of_setting("tensor_plan", {}), "tensor_plan = {}"),
    "check": (of_setting("check", "yes"), "check = 'yes'"),
    "seed": (of_setting("seed", 0.5), "seed = 0.5"),
    "device": (of_setting("device", "tpu"), "device"),
    "blas": (of_setting("blas", "none such"), "none such"),
    "convolutions": (of_setting("convolutions", "winograd"), "convolutions"),
    "matmul_precision": (of_setting("matmul_precision", "low"), "matmul_precision"),
    "gpu_transport": (of_setting("gpu_transport", "pigeon"), "gpu_transport"),
    "activation_checkpointing": (of_setting("activation_checkpointing", 1), "= 1"),
    "compute_dtype": (of_setting("compute_dtype", "float12"), "compute_dtype = 'float12'"),
    "compute_dtype: float8": (of_setting("compute_dtype", "float8"), "float8"),
    "residual_dtype": (of_setting("residual_dtype", "float64"), "residual_dtype = 'float64'"),
    "initial_loss_scale": (of_setting("initial_loss_scale", 3.0), "initial_loss_scale = 3.0"),
    "loss_scale_interval": (of_setting("loss_scale_interval", 0), "loss_scale_interval = 0"),
    "minimum_parameter_group_size": (
        of_setting("minimum_parameter_group_size", 0),
        "minimum_parameter_group_size = 0",
    ),
    "deterministic": (of_setting("deterministic", "no"), "deterministic = 'no'"),
    "shard_ranks": (of_setting("shard_ranks", 0), "shard_ranks = 0"),
    "domain_grid": (
        of_setting("domain_grid", (0, 2)),
        "domain_grid = (0, 2); wanted a list, not empty, each an integer, at least 1",
    ),
    "domain_grid: ranks": (of_setting("domain_grid", (2, 2)), "domain_grid = (2, 2) is 2 x 2 = 4"),
    "domain_slabs": (of_setting("domain_slabs", 0), "domain_slabs = 0"),
    "gradient_compression": (of_setting("gradient_compression", "zip"), "= 'zip'"),
    "frozen": (of_setting("frozen", 3), "frozen = 3"),
    "frozen: no such name": (of_setting("frozen", ("nothing",)), "nothing"),
    "overlap": (of_setting("overlap", "on"), "overlap = 'on'"),
    "sequence_parallel": (of_setting("sequence_parallel", None), "sequence_parallel = None"),
    "schedule": (of_setting("schedule", "2f2b"), "2f2b"),
    "schedule: number": (of_setting("schedule", 1), "schedule = 1"),
    "virtual_stages": (of_setting("virtual_stages", 0), "virtual_stages = 0"),
    "stage_balance": (of_setting("stage_balance", "even"), "even"),
    "stage_balance: costs": (of_setting("stage_balance", (-1.0,)), "stage_balance"),
    "blocks_per_stage": (of_setting("blocks_per_stage", (0, 2)), "blocks_per_stage = (0, 2)"),
    "SGD lr": (of_rule(sk.SGD, lr=-1), "lr = -1"),
    "SGD momentum": (of_rule(sk.SGD, momentum=1.0), "momentum = 1.0"),
    "SGD nesterov": (of_rule(sk.SGD, nesterov=True), "nesterov = True"),
    "Momentum beta": (of_rule(sk.Momentum, beta=2), "beta = 2"),
    "Adam eps": (of_rule(sk.Adam, eps=0), "eps = 0"),
    "AdamW lr": (of_rule(sk.AdamW, lr=-1), "lr = -1"),
    "AdamW lr: text": (of_rule(sk.AdamW, lr="0.1"), "lr = '0.1'"),
    "AdamW beta1": (of_rule(sk.AdamW, beta1=1.5), "beta1 = 1.5"),
    "AdamW weight_decay": (of_rule(sk.AdamW, weight_decay=-1), "weight_decay = -1"),
    "Lion beta2": (of_rule(sk.Lion, beta2=-1), "beta2 = -1"),
    "Muon ns_steps": (of_rule(sk.Muon, ns_steps=-1), "ns_steps = -1"),
    "EMA decay": (of_rule(lambda decay=0.9: sk.EMA(sk.SGD(), decay), decay=2), "decay = 2"),
    "EMA of a rule": (of_rule(lambda lr=0.1: sk.EMA(sk.SGD(lr=lr)), lr=-1), "lr = -1"),
    "Constant peak": (
        of_schedule(SCHEDULES.Constant, {"peak": 1.0}, {"peak": -1.0}),
        "peak = -1.0",
    ),
    "Cosine decay_steps": (
        of_schedule(SCHEDULES.Cosine, {"peak": 1.0, "decay_steps": 9}, {"peak": 1.0}),
        "decay_steps = 0",
    ),
    "WSD decay_part": (
        of_schedule(
            SCHEDULES.WarmupStableDecay,
            {"peak": 1.0, "decay_steps": 9},
            {"peak": 1.0, "decay_steps": 9, "decay_part": 2},
        ),
        "decay_part = 2",
    ),
    "group: no name": (of_group(), "ParameterGroup with names"),
    "group: lr_scale": (of_group("*", lr_scale=-1), "lr_scale = -1"),
    "group: rule": (of_group("*", rule=sk.SGD), "ParameterGroup with rule"),
    "group: a constant": (of_group("*", weight_decay=-1), "-1"),
    "group: no such constant": (of_group("*", weight_deacy=1), "weight_deacy"),
    "group: no such parameter": (of_group("nothing"), "nothing"),
    "hybrid: pipeline": (of_hybrid(pipeline_parallel_size=0), "pipeline 0"),
    "hybrid: tensor": (of_hybrid(tensor_parallel_size=-1), "tensor -1"),
    "hybrid: data": (of_hybrid(data_parallel_size=7), "7"),
    "hybrid: policy": (of_hybrid(policy="zero9"), "zero9"),
    "hybrid: order": (of_hybrid(order=("data", "data", "tensor")), "order"),
    "optimizer: rule": (of_optimizer(), "lr = -1"),
    "optimizer: no rule": (
        lambda backend, is_wrong: sk.DDPOptimizer(
            None if is_wrong else sk.AdamW(), sk.ShardingConfiguration(backend), model=mlp()
        ),
        "needs a rule",
    ),
    "optimizer: patience": (of_optimizer(patience=0), "patience = 0"),
    "optimizer: improvement": (of_optimizer(minimum_improvement=-1), "minimum_improvement = -1"),
    "the model": (
        lambda backend, is_wrong: sk.DDPModel(
            3 if is_wrong else mlp(), sk.ShardingConfiguration(backend)
        ),
        "needs an nn.Module",
    ),
    "mesh: sizes": (
        lambda backend, is_wrong: sk.Mesh(backend, tensor=7 if is_wrong else 1),
        "7",
    ),
}


def optimize(model, is_wrong, **wrong):
    given = sk.OptimizationInputData(*batch(), **{"epochs": 1, **(wrong if is_wrong else {})})
    return sk.DDPOptimizer(
        model.sharding_configuration.optimizer, model.sharding_configuration, model=model
    ).optimize(given)


def deserialize(model, is_wrong, is_part_wrong=False):
    image = model.serialize()
    model.deserialize(b"?" if is_wrong else image, **({"only": 3} if is_part_wrong else {}))


CALLED = {
    "train: no samples": (
        lambda model, is_wrong: model.train(*batch(0 if is_wrong else 6)),
        "sample",
    ),
    "train: micro-batches": (
        lambda model, is_wrong: model.train(*batch(5 if is_wrong else 6)),
        "do not divide into 2 micro-batches",
    ),
    "train: dims": (
        lambda model, is_wrong: model.train(batch()[0][:, : 1 if is_wrong else 2], batch()[1]),
        "2",
    ),
    "train: None": (
        lambda model, is_wrong: model.train(None if is_wrong else batch()[0], batch()[1]),
        "x",
    ),
    "predict: dims": (
        lambda model, is_wrong: model.predict(batch()[0][:, : 1 if is_wrong else 2]),
        "2",
    ),
    "evaluate: lengths": (
        lambda model, is_wrong: model.evaluate(batch()[0], batch(5 if is_wrong else 6)[1]),
        "5",
    ),
    "evaluate: metrics": (
        lambda model, is_wrong: model.evaluate(*batch(), metrics=3 if is_wrong else None),
        "metrics",
    ),
    "compute_gradients: dims": (
        lambda model, is_wrong: model.compute_gradients(
            batch()[0][:, : 1 if is_wrong else 2], batch()[1]
        ),
        "2",
    ),
    "compute_gradients: loss": (
        lambda model, is_wrong: model.compute_gradients(*batch(), 3 if is_wrong else None),
        "loss",
    ),
    "apply_gradients: rate": (
        lambda model, is_wrong: model.apply_gradients(
            model.compute_gradients(*batch()), -1.0 if is_wrong else 0.1
        ),
        "learning_rate = -1.0",
    ),
    "apply_gradients: length": (
        lambda model, is_wrong: model.apply_gradients(
            model.compute_gradients(*batch())[: 1 if is_wrong else None], 0.1
        ),
        "1",
    ),
    "set_parameters: length": (
        lambda model, is_wrong: model.set_parameters(
            numpy.zeros(3 if is_wrong else model.parameter_count, "float32")
        ),
        "3",
    ),
    "set_parameters: None": (
        lambda model, is_wrong: model.set_parameters(
            None if is_wrong else numpy.zeros(model.parameter_count, "float32")
        ),
        "parameter",
    ),
    "with_parameters: length": (
        lambda model, is_wrong: model.with_parameters(
            numpy.zeros(3 if is_wrong else model.parameter_count, "float32")
        ),
        "3",
    ),
    "use_rule: lr": (
        lambda model, is_wrong: model.use_rule(sk.AdamW(lr=-1 if is_wrong else 1)),
        "lr = -1",
    ),
    "use_rule: state": (
        lambda model, is_wrong: model.use_rule(sk.SGD() if is_wrong else sk.AdamW()),
        "SGD",
    ),
    "use_rule: None": (
        lambda model, is_wrong: model.use_rule(None if is_wrong else sk.AdamW()),
        "rule",
    ),
    "features: number": (
        lambda model, is_wrong: model.set_active_feature_indices([9 if is_wrong else 1]),
        "9",
    ),
    "features: importance": (
        lambda model, is_wrong: model.get_feature_importance(*(() if is_wrong else batch())),
        "samples",
    ),
    "deserialize": (lambda model, is_wrong: deserialize(model, is_wrong), ""),
    "deserialize: only": (lambda model, is_wrong: deserialize(model, False, is_wrong), "only"),
    "optimize: epochs": (lambda m, w: optimize(m, w, epochs=0), "epochs = 0"),
    "optimize: batch_size": (lambda m, w: optimize(m, w, batch_size=0), "batch_size = 0"),
    "optimize: seed": (lambda m, w: optimize(m, w, shuffle_seed=-1), "shuffle_seed = -1"),
    "optimize: solution": (
        lambda m, w: optimize(m, w, initial_solution=numpy.zeros(3)),
        "3",
    ),
    "load_model: path": (
        lambda model, is_wrong: model.load_model(None if is_wrong else "/nowhere"),
        "path = None",
    ),
    "save_model: path": (
        lambda model, is_wrong: model.save_model(3 if is_wrong else "/dev/null/x"),
        "path = 3",
    ),
    "save_model: keep": (
        lambda model, is_wrong: model.save_model("/dev/null/x", keep=-1 if is_wrong else None),
        "keep",
    ),
    "save_model_async: path": (
        lambda model, is_wrong: model.save_model_async(3 if is_wrong else "/dev/null/x"),
        "path = 3",
    ),
    "load_model: only": (
        lambda model, is_wrong: model.load_model("/nowhere", only="weights" if is_wrong else None),
        "only = 'weights'",
    ),
    "load_model: names": (
        lambda model, is_wrong: model.load_model(
            "/nowhere", only="model", names=[""] if is_wrong else ["*"]
        ),
        "names",
    ),
    "load_model: strict": (
        lambda model, is_wrong: model.load_model("/nowhere", strict=3 if is_wrong else True),
        "strict = 3",
    ),
}

# of a GPT of 8 tokens
GENERATED = {
    "prompts": ({"prompts": [[9]]}, "9"),
    "prompts: none": ({"prompts": 3}, "prompts = 3; wanted a list of prompts"),
    "num_tokens": ({"num_tokens": -1}, "-1"),
    "temperature": ({"temperature": -1.0}, "-1.0"),
    "top_k": ({"top_k": 0}, "top_k = 0"),
    "top_p": ({"top_p": 2}, "top_p = 2"),
    "repetition_penalty": ({"repetition_penalty": 0}, "repetition_penalty = 0"),
    "together": ({"together": 0}, "together = 0"),
    "stop": ({"stop": (-1,)}, "-1"),
    "stop: a number": ({"stop": 3}, "stop = 3; wanted token numbers"),
    "seeds": ({"seeds": [0.5]}, "seeds = [0.5]"),
}

# valid, but other on one rank: (act(model or backend, is_odd), words about the setting)
DIFFERENT = {
    "the path": (
        lambda model, is_odd: model.save_model("/dev/null/b" if is_odd else "/dev/null/a"),
        "path is '/dev/null/b' on rank {odd}, but '/dev/null/a' on rank",
    ),
    "keep": (
        lambda model, is_odd: model.save_model("/dev/null/a", keep=2 if is_odd else 1),
        "keep is 2 on rank {odd}, but 1 on rank",
    ),
    "only": (
        lambda model, is_odd: model.load_model("/nowhere", only="model" if is_odd else None),
        "only is 'model' on rank {odd}, but None on rank",
    ),
    "only, of an image": (
        lambda model, is_odd: model.deserialize(
            model.serialize(), only="model" if is_odd else None
        ),
        "only is 'model' on rank {odd}, but None on rank",
    ),
    "metrics": (
        lambda model, is_odd: model.evaluate(*batch(), metrics={} if is_odd else None),
        "missing on rank {odd}, but",
    ),
    "loss": (
        lambda model, is_odd: model.compute_gradients(*batch(), abs if is_odd else None),
        "loss is abs on rank {odd}, but None on rank",
    ),
    "rule": (
        lambda model, is_odd: model.use_rule(sk.AdamW(lr=0.5 if is_odd else 0.25)),
        "the rule is",
    ),
    "rate": (
        lambda model, is_odd: model.apply_gradients(
            model.compute_gradients(*batch()), 0.5 if is_odd else 0.25
        ),
        "learning_rate is 0.5 on rank {odd}, but 0.25 on rank",
    ),
    "vector": (
        lambda model, is_odd: model.set_parameters(
            numpy.full(model.parameter_count, float(is_odd), "float32")
        ),
        "the parameter vector is",
    ),
    "features": (
        lambda model, is_odd: model.set_active_feature_indices([0 if is_odd else 1]),
        "active features is [0] on rank {odd}, but [1] on rank",
    ),
    "folder": (
        lambda model, is_odd: optimizer_of(model).optimize(
            sk.OptimizationInputData(*batch()), folder="/dev/null/a" if is_odd else None
        ),
        "folder is '/dev/null/a' on rank {odd}, but None on rank",
    ),
    "epochs": (
        lambda model, is_odd: optimizer_of(model).optimize(
            sk.OptimizationInputData(*batch(), epochs=2 if is_odd else 1)
        ),
        "epochs is",
    ),
}


def optimizer_of(model):
    config = model.sharding_configuration
    return sk.DDPOptimizer(config.optimizer, config, model=model)
