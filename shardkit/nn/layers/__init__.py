"""Layers: parameters with the operation that uses them, one family per file."""
