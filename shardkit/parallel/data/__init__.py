"""The data axis: what each data rank keeps of a model, and what travels between data ranks.

unit           blocks of the model and their flat arrays; read it first
keepers        Whole, Shard, Window: the ways to keep an array, and the policies' choice
gradients      from one micro-batch to the sum over data ranks, as a fixed tree
site           where keepers find memory and messages
movement       the collectives, in one call or asynchronous
overlap        whether messages travel while units compute
partition      cut a model into units
batches        split a global batch
"""
