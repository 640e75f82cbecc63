"""Models of communication: DDP's buckets and their duration."""
