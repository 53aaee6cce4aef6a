"""Data: numbered samples, where they come from, and the order in which a run sees them."""
