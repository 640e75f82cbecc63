"""Files in, files out: what other tools wrote, as the same records that a live job gives."""
