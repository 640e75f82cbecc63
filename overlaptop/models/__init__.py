"""Models of communication: DDP's buckets, their duration, and the prefetch depth."""
