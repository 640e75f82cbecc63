"""Bundled workloads: start them, and compare them."""
