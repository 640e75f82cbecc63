"""Hubs, and who speaks to them."""

from tests.hubs import folder as folder
from tests.hubs import hubs as hubs
from tests.hubs import make_rank as make_rank
from tests.hubs import make_viewer as make_viewer
from tests.hubs import private_sockets as private_sockets
from tests.hubs import watched as watched
