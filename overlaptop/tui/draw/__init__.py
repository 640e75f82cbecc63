"""Lines and bars: drawing without any knowledge of jobs."""
