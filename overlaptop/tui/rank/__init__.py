"""One rank."""
