"""Hooks into the job: steps, collectives, waits."""
