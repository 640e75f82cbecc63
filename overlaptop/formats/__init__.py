"""Reads and writes files. Other tools' traces become the same records that a live job sends."""
