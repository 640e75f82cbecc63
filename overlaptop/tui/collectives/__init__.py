"""The collectives of one step, on all ranks."""
