"""Sources of a rank's spans: kernels (CUPTI), events (CUDA), host (CPU), with one protocol."""
