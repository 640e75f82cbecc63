"""Why steps are slow, and what to do about it."""
