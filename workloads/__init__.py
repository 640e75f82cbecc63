"""Bundled training jobs to try the monitor on. `catalog` lists them; each also runs by its path."""
