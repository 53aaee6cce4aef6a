"""A model cut into stages along the pipeline: which rank holds what, and messages between ranks.

Read stages.py first, then programs.py (from a schedule to what a rank executes) and transfer.py.
"""
