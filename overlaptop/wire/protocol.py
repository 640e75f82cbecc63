"""Constants that both ends of a connection share. Imports nothing: ``--help`` and the doctor use it too."""

PROTOCOL_VERSION = 9  # Incremented when an older peer can no longer understand the messages

JOB_KEY = r"\A[a-z0-9-]{1,40}\Z"
"""Pattern of a job's key on the command line, in messages and as a folder name."""

RULE = r"\A[a-z0-9_]{1,40}\Z"  # Pattern of the name of a finding's rule, in messages and in file names

JOIN_S = 1.0  # Longest interval between a dashboard's Joins, which tell the hub that it is alive
READER_TIMEOUT_S = 7.0
"""A hub forgets a dashboard, and the root another hub, that has been silent for longer."""
