"""Commands: all ranks act at the same step, or none does."""
