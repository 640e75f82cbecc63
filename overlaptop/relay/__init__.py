"""What runs on another host at the end of ssh, between its hub and a dashboard elsewhere."""
