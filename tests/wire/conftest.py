"""The socket directory of each test, and hubs in it."""

from tests.hub.conftest import KEY as KEY
from tests.hub.conftest import PATIENCE_S as PATIENCE_S
from tests.hub.conftest import Hubs as Hubs
from tests.hub.conftest import Rank as Rank
from tests.hub.conftest import eventually as eventually
from tests.hub.conftest import folder as folder
from tests.hub.conftest import hubs as hubs
from tests.hub.conftest import make_rank as make_rank
from tests.hub.conftest import make_viewer as make_viewer
from tests.hub.conftest import socket_dir as socket_dir
