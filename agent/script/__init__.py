"""Runs the job's script as Python itself would."""
