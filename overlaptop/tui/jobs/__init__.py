"""The choice of a job to watch."""
