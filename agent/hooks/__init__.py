"""Where the agent sees the job: steps, collectives, waits."""
