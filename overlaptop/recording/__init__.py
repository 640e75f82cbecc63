"""Recordings of jobs: what a hub sent, as it came, in files that outlive the job."""
