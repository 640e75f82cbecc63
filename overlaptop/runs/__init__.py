"""Whole runs: the report of one, and the differences between two. Pure."""
