"""What commands do with checkpoints: convert, compare and describe them."""
