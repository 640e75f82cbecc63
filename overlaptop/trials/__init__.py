"""Trials of settings and delays on a running job, and their effects on its steps."""
