"""Collectives made of others: ordered sums, async ones, half floats. Read ordered.py first."""
