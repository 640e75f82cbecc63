"""Which job to watch."""
