"""A job on its node: its folder, its record, its hub's start and the connection to that hub; the logs of
changes and of the last end.
"""
