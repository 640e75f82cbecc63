"""Trials on the job that is shown."""
