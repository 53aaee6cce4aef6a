"""What happens when a rank fails: no rank waits for a dead one. Read agreement.py first."""
