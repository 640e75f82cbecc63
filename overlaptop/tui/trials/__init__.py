"""Trials on the watched job."""
