"""A real hub for those tests that need one."""

from tests.hubs import hubs as hubs
from tests.hubs import make_rank as make_rank
from tests.hubs import private_sockets as private_sockets
