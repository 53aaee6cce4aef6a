"""Ranks that are processes of an MPI job. Read backend.py first, then channel.py."""
