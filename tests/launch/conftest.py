"""Fixtures of this folder."""

import pytest

from overlaptop.launch import launcher
from tests.hubs import private_sockets as private_sockets


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that ignore SIGTERM are killed soon."""
    monkeypatch.setattr(launcher, "GRACE_S", 0.5)
