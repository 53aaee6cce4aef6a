"""Ranks that are threads of one process. Read backend.py first."""
