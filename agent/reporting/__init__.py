"""Measured steps become messages and go to the hub."""
