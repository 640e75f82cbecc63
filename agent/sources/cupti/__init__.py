"""CUPTI's activity records, read through ctypes from the libcupti that torch has loaded."""
