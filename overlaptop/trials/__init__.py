"""Trials of settings and delays on a running job, and what they did to its steps."""
