"""Models of communication: which buckets DDP makes, how long they take, how deep to prefetch."""
