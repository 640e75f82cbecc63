"""A real hub for those tests that need one."""

from tests.hub.conftest import hubs as hubs
from tests.hub.conftest import make_rank as make_rank
from tests.hub.conftest import socket_dir as socket_dir
