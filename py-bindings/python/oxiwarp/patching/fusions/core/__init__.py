"""What every fusion is made of."""
