"""The state of a running job: the newest steps of each rank, and a frozen Snapshot of them."""
