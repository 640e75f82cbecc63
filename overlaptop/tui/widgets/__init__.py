"""What screens are made of: lines about the job, tables, prompts, the header and the foot."""
