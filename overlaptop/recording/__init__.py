"""Recordings of jobs: the messages of their hubs, in files."""
