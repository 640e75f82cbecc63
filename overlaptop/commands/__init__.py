"""The commands, one module each. stdout is data, stderr is talk; heavy imports are inside ``run``."""
