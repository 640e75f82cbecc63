"""The socket directory of each test, and hubs in it."""

from tests.hubs import folder as folder
from tests.hubs import hubs as hubs
from tests.hubs import private_sockets as private_sockets
