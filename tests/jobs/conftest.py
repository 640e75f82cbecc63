"""The socket directory of each test, hubs in it, and a process that has ended."""

import subprocess
import sys

import pytest

from overlaptop.jobs.processes import process_start_time
from tests.hubs import folder as folder
from tests.hubs import hubs as hubs
from tests.hubs import private_sockets as private_sockets


@pytest.fixture
def gone():
    """A process that has ended: its pid and start time."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = process.pid, process_start_time(process.pid)
        process.stdin.close()
    return identity
