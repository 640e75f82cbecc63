"""Whole runs: what is reported of one, and what differs between two. Pure."""
