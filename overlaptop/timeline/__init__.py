"""Spans of time and the figures computed from them. Pure numpy: no I/O, no torch, no Textual."""
