"""Fixtures of this folder."""

import pytest

from overlaptop.launch import supervised
from tests.hubs import private_sockets as private_sockets


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that ignore SIGTERM are killed soon."""
    monkeypatch.setattr(supervised, "GRACE_S", 0.5)
