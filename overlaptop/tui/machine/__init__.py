"""Parts of the Machine view: a host, and the lines of each part. Pure functions of a rank."""
