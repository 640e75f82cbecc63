"""What is known of a running job: the newest steps of each rank, and one frozen Snapshot of it all."""
