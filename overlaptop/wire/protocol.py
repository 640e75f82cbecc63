"""What both ends of a connection agree on. Imports nothing: ``--help`` and the doctor need it too."""

PROTOCOL_VERSION = 5
"""Raised by one when an older peer could no longer understand what is sent."""

LEASE_S = 5.0
"""A hub forgets a dashboard that has been silent for longer, and undoes what its search has changed."""
