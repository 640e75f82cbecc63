"""The hooks by which the agent sees the job: steps, collectives, waits."""
