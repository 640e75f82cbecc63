"""overlaptop: does communication hide behind compute, live, while the job trains."""

__version__ = "0.1.0"
