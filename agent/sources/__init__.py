"""Where a rank's spans come from: events (CUDA), host (a CPU), behind one protocol in base.py."""
