"""Lines, bars and prompts: drawing that knows nothing of jobs."""
