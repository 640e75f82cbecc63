"""Starts jobs under torchrun on this machine, watches them and ends them."""
