"""Help and notices."""
