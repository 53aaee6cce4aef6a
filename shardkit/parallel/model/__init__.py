"""Sharded models and optimizers: what a user holds, and the parts that it delegates to.

sharded_model   ShardedModel, the face of all strategies; read it first
strategies      DDP, ZeRO-1, ZeRO-2, FSDP, tensor, pipeline and hybrid, by name
stored          its contract for files and images; checkpoints: the part that does it
copied          its contract for whole vectors and copies
report          metadata, and the table of who is where
features        its contract for input features, and their importance
evaluated       its contract for loss and metrics; measuring: what adds them up over batches
optimizer       ShardedOptimizer, the face of all optimizers; optimizers: each by name
optimization    the input and the results of a whole run; epochs: its loop
replicas        compare replicas with their first holder, and make them its bits
history         what a model remembers of its training; profile: where the time of a step goes
"""
