"""Commands: all ranks act at one step, or none does."""
