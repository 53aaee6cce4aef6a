"""One training step: agree on a batch, execute a program, vote, update.

Read executor.py first: one table, one loop. engine.py is the step around it, assembly.py builds its
parts; flow.py, gathering.py and updates.py are what actions do. cuda_graphs.py, cuda_work.py: GPUs
only.
"""
