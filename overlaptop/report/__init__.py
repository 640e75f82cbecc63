"""Describe a Snapshot in words, for the screen and for commands."""
