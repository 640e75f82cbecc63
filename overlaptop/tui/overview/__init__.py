"""The job at a glance."""
