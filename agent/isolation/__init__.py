"""Keeps the agent out of the job's way: faults, signals, threads, children, patches, the compiler."""
