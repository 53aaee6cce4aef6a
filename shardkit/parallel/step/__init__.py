"""One training step: agree on a batch, execute a program, vote, update.

Read executor.py first: one table, one loop. engine.py is the step around it, assembly.py builds its
parts; flow.py, gathering.py and updates.py are what actions do. state.py is what a checkpoint
holds: weights.py (whole vectors too), optimizer state, buffers.py, averaged.py. compilation.py says
whether steps are captured; what captures them is for GPUs alone (gpu/step).
"""
