"""What a Snapshot says in words, for the screen and for commands alike."""
