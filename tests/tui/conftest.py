"""What all tests of the dashboard share."""

import pytest


@pytest.fixture(autouse=True)
def with_colors(monkeypatch):
    """Whatever the machine's environment asks for."""
    monkeypatch.delenv("NO_COLOR", raising=False)
