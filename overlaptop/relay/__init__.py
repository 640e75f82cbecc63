"""The program that runs on another host at the end of ssh, between its hub and a remote dashboard."""
