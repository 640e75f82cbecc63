"""What all tests of the dashboard share."""

import pytest


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, socket_dir):
    """Colours and no jobs, whatever the machine's environment asks for and runs."""
    monkeypatch.delenv("NO_COLOR", raising=False)
