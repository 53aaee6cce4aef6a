"""What outlives a rank that hangs: its job's folder on this node, the roll of ranks in it, and a
warden process for each rank.

These files import nothing but the standard library and each other, since a warden runs without the
rest of the package.
"""
