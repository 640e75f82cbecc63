"""What both ends of a connection agree on. Imports nothing: ``--help`` and the doctor need it too."""

PROTOCOL_VERSION = 8
"""Raised by one when an older peer could no longer understand what is sent."""

JOB_KEY = r"\A[a-z0-9-]{1,40}\Z"
"""A job is called so: on the command line, in messages and as a folder."""

JOIN_S = 1.0
"""Between two Joins of a dashboard: by them a hub knows that somebody is there."""
LEASE_S = 5.0
"""A hub forgets a dashboard that has been silent for longer."""
