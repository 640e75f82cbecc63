"""Jobs on other machines: the line to a host, and what runs at its far end."""
