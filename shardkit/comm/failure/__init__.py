"""failure."""
