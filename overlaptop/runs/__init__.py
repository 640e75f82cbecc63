"""Reports of runs, and the differences between two. Pure."""
