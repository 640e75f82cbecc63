"""The socket directory of each test, and hubs in it."""

from tests.hub.conftest import folder as folder
from tests.hub.conftest import hubs as hubs
from tests.hub.conftest import socket_dir as socket_dir
