"""The client for jobs on other hosts: targets, connections with retries, clock offsets."""
