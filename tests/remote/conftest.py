"""What the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.connections import Connections


@pytest.fixture
def connections() -> Iterator[Connections]:
    """Makes connections to the relays of fake_relays.py."""
    made = Connections()
    yield made
    made.close()
