"""Why a job's steps are slow, and what to do about it: a rule a file."""
