"""The watched hosts."""
