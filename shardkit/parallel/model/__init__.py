"""Sharded models and optimizers: what a user holds, and the parts that it delegates to.

sharded_model   ShardedModel, the face of all strategies; read it first
parts           what it holds: how they are made, shared and closed
strategies      DDP, ZeRO-1, ZeRO-2, FSDP, tensor, pipeline and hybrid, by name
learning        the part that takes steps, and what a model remembers of them
checkpoints     the part for files and images
report          metadata, and the table of who is where
features        the part for input features, and their importance
measuring       the part for loss and metrics, which are added up over batches
optimizer       ShardedOptimizer, the face of all optimizers; optimizers: each by name
loop            the loop of a run: steps, what is due after each, and the vote that may end it
optimization    the input and the results of optimize(); optimizing: its course on that loop
replicas        compare replicas with their first holder, and make them its bits
tracing         a trace of all ranks; trace_file: its form
profile         where the time of a step goes
"""
