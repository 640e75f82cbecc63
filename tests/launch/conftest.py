"""Fixtures of this folder."""

from tests.hubs import private_sockets as private_sockets
