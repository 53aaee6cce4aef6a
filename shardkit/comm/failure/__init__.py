"""What happens when a rank fails: its error on all ranks, one message. Read agreement.py first."""
