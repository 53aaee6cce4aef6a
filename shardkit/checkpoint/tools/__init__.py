"""The work of commands: convert, compare and describe checkpoints."""
