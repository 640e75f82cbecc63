"""How long silence is borne: in a module of its own, which ``--help`` can import at no cost."""

LEASE_S = 5.0
"""A hub forgets a dashboard that has been silent for longer, and undoes what its search has changed."""
