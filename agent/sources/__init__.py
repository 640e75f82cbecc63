"""Where a rank's spans come from: kernels (CUPTI), events (CUDA), host (a CPU), by one protocol."""
