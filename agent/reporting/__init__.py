"""Turns measured steps into messages and sends them to the hub."""
