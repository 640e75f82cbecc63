"""The client of jobs on other hosts: targets, connections that are retried, clocks."""
