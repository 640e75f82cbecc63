"""Starting bundled workloads, and what was tried."""
