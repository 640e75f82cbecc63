"""What of the job can be changed while it runs."""
