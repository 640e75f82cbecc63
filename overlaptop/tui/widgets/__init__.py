"""Parts of screens: lines about the job, tables, prompts, the header and the foot."""
