"""Models of communication: how long collectives, bucket layouts and prefetching take. Pure numpy."""
