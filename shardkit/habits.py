"""What people type who come from PyTorch, Lightning, mpi4py or NumPy, and what it is called here.

A name that a class lacks is looked up in the table: the AttributeError says what to write instead.
"""

from collections.abc import Callable
from typing import NoReturn

_DEVICE = 'device="cuda" of sk.ShardingConfiguration: the run says where arrays are'
_DTYPE = 'dtype= of its layers, or compute_dtype="bfloat16" of sk.ShardingConfiguration'
_STEP = "model.train(x, y) of a sharded model: forward, backward and step in one"
_CAST = 'ops.cast(x, "float16")'

# {class: {names, separated by blanks: what it is here}}
TABLE = {
    "Module": {
        "to cuda cpu device": _DEVICE,
        "half bfloat16 float double type": _DTYPE,
        "register_forward_hook register_forward_pre_hook register_full_backward_hook": (
            "a line in forward() of your class: there are no hooks"
        ),
        "fit": "sk.Training(model, data).run(), or shardkit train",
        "backward step": _STEP,
        "save load": "save_model(folder) of a sharded model, or numpy.savez of state_dict()",
    },
    "Tensor": {
        "to": f"{_DEVICE}; a dtype: {_CAST}",
        "cuda cpu device": _DEVICE,
        "half bfloat16 int type astype": _CAST,
        "data": "detach()",
        "tolist": "x.numpy().tolist()",
        "contiguous copy": "x.clone()",
        "requires_grad_": "nn.Tensor(array, requires_grad=True)",
        "retain_grad register_hook": "nn.grad(y, x), which returns the gradient of any tensor",
        "index_put_ sub_ div_ fill_": "x[...] = y inside nn.no_grad(), or add_, mul_, copy_",
    },
    "ShardedModel": {
        "state_dict": "save_model(folder), or get_parameters() for one vector of all ranks",
        "load_state_dict": (
            "load_model(folder), set_parameters(vector), or wrapped_model.load_state_dict(state) "
            "before the model is sharded"
        ),
        "forward": "predict(x)",
        "fit": "sk.Training(model, data).run(), or a loop over train(x, y)",
        "save": "save_model(folder)",
        "load": "load_model(folder)",
        "module": "wrapped_model",
        "parameters named_parameters": "wrapped_model.named_parameters(), a dict",
        "zero_grad backward": "train(x, y), or compute_gradients(x, y) and apply_gradients(g, lr)",
        "no_sync": "auto_synchronize_gradients=False of the configuration",
        "clip_grad_norm_": "max_gradient_norm= of the configuration",
        "to cuda cpu half": _DEVICE,
        "optimizer": "sharding_configuration.optimizer",
    },
    "Rule": {
        "step zero_grad": f"{_STEP}; a rule has no parameters",
        "param_groups add_param_group": "parameter_groups=(sk.ParameterGroup(...),)",
        "state_dict load_state_dict": "save_model(folder) of the sharded model, with its state",
    },
    "Backend": {
        "Get_rank": "rank",
        "size Get_size get_world_size": "world_size",
        "Allreduce allreduce": "all_reduce(array), in place, or all_gather_object(value)",
        "Bcast bcast": "broadcast(array), or broadcast_object(value)",
        "Allgather allgather": "all_gather(send, receive), or all_gather_object(value)",
        "Send Recv recv": "send(array, destination), receive(array, source)",
        "Barrier": "barrier()",
        "Split": "split(color, key)",
        "Abort": "abort(message)",
        "destroy_process_group": "shutdown()",
    },
}


# {room: {name: what it is here}}
ROOMS = {
    "shardkit": {
        "tensor": "sk.nn.Tensor(array)",
        "manual_seed": "seed= of models, of finish(seed) and of sk.ShardingConfiguration",
        "cuda device": _DEVICE,
        "save": "model.save_model(folder)",
        "DataLoader Dataset": "sk.Samples, read by number, or sk.IndexedSamples(dataset)",
        "Trainer LightningModule": "sk.Training, sk.Task",
        "DistributedDataParallel DDP": "sk.DDPModel(model, config)",
        "FullyShardedDataParallel FSDP": "sk.FSDPModel(model, config)",
        "distributed": "sk.MPICommunicationBackend(), whose methods are the collectives",
    },
    "nn": {
        "utils": "max_gradient_norm= of sk.ShardingConfiguration, where clipping is meant",
        "F": "nn.functional, which is nn.ops",
        "DataParallel": "sk.DDPModel(model, config)",
        "SyncBatchNorm": (
            "nn.BatchNorm2d, by the moments of each micro-batch, which keeps those of the global "
            "batch; nn.GroupNorm depends on no batch"
        ),
    },
    "ops": {
        "binary_cross_entropy": (
            "ops.binary_cross_entropy_with_logits(x, y), of logits, or nn.BCELoss()(x, y), of "
            "probabilities"
        ),
        "mse_loss l1_loss smooth_l1_loss huber_loss nll_loss kl_div gaussian_nll_loss": (
            "a loss of nn that is called: nn.MSELoss()(x, y), nn.L1Loss()(x, y), ..."
        ),
    },
}


# {class of PyTorch: what an object of it is here}
FOREIGN = {
    "DataLoader": "its .dataset; batch_size is batch.sequences, shuffle run.seed, a thread reads "
    "ahead, and what collate_fn or sampler do belongs into the data set",
    "IterableDataset": "sk.Samples, read by number, or sk.coupled, which feeds a run in its order",
    "_Loss": "the loss of this name in shardkit.nn",
    "Module": "one of layers of these names in shardkit.nn, and load_state_dict(module.state_dict()"
    "); of transformers GPT.from_checkpoint(folder)",
}


def named_here(thing: object) -> str:
    """Return what to say of an object of PyTorch that stands for something else; "" of others."""
    for each in type(thing).__mro__:
        if each.__module__.partition(".")[0] == "torch" and each.__name__ in FOREIGN:
            return f" of PyTorch; here it is {FOREIGN[each.__name__]} (docs/porting.md)"
    return ""


def raise_own_error(thing: object, name: str) -> None:
    """Raise the AttributeError that a property of this name raises in its own lines, if it is one:
    Python asks __getattr__ after it, and forgets it.
    """
    if hasattr(type(thing), name):
        object.__getattribute__(thing, name)


def refuse(kind: str, thing: object, name: str) -> NoReturn:
    """Raise the AttributeError for a name that this thing lacks: with what it is called here."""
    raise_own_error(thing, name)
    text = f"{type(thing).__name__!r} object has no attribute {name!r}"
    here = None if name.startswith("_") else _found(TABLE[kind], name)
    if here is not None:
        text += f"; here it is {here} (docs/porting.md)"
    raise AttributeError(text, name=name, obj=thing)


def _found(table, name):
    return next((here for names, here in table.items() if name in names.split()), None)


def place_of(room: str, rooms: Callable[[], dict], name: str) -> str:
    """Return what to say of a name that is looked for in a room and is none of its names.

    rooms   () -> {room: its names}, of those that it may be in
    """
    here = _found(ROOMS[room], name)
    if here is not None:
        return f"; here it is {here} (docs/porting.md)"
    other = next((other for other, names in rooms().items() if name in names), None)
    return f"; it is shardkit.{other}.{name}" if other else ""
