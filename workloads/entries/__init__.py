"""What each bundled workload is called, is for and takes. `catalog` gathers them. Imports no torch."""
