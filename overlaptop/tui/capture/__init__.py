"""torch.profiler on demand, beside the live figures."""
