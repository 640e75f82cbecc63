"""Spans of time and what follows from them. Pure numpy: no I/O, no torch, no Textual."""
