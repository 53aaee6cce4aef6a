"""Ranks that are processes of an MPI job. Read backend.py first, then channel.py.

guard.py: no rank waits for a dead one. elastic.py: the others go on where MPI can.
"""
