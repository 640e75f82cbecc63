"""A real hub for those tests that need one."""

import shutil
import tempfile

import pytest

from tests.hub.conftest import Hubs


@pytest.fixture
def hubs(monkeypatch):
    # Not tmp_path: a socket's path has room for 107 bytes.
    path = tempfile.mkdtemp(prefix="ot-", dir="/tmp")
    monkeypatch.setenv("OVERLAPTOP_DIR", path)
    hubs = Hubs()
    yield hubs
    hubs.end_all()
    shutil.rmtree(path, ignore_errors=True)
