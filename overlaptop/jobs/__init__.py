"""A job on its node: its folder and record, its hub's start and connection, logs of changes and ends."""
