"""Knobs, their changes, and what these brought."""
