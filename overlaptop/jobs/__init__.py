"""A job on its node: its folder and record, how its hub starts, the connection to that hub, and the logs of
changes and of the last end.
"""
