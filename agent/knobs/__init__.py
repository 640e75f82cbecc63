"""Knobs: settings of the job that can be changed while it runs."""
