"""Fixtures of this folder."""

from collections.abc import Iterator

import pytest

from tests.remote.connections import Connections


@pytest.fixture
def connections() -> Iterator[Connections]:
    """Makes connections to the relays of fake_relays.py."""
    made = Connections()
    yield made
    made.close()
