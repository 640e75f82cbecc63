"""One step to scale: lanes, collectives, history."""
