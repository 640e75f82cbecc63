"""The parts of the Machine view: what a host is, and lines of each part. Pure functions of a rank."""
