"""Lines and bars: drawing that knows nothing of jobs."""
