"""Knobs, their changes, and the results."""
