"""Name, purpose and options of each bundled workload. `catalog` collects them. Imports no torch."""
