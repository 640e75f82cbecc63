"""The hosts that are watched."""
