"""One step of all ranks on one axis."""
