"""What the tests of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlaptop.launch import supervised


@pytest.fixture(autouse=True)
def private_sockets(socket_dir: Path) -> None:
    """No test sees another one's jobs."""


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that ignore SIGTERM are killed soon."""
    monkeypatch.setattr(supervised, "GRACE_S", 0.5)
