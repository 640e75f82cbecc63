"""Fixtures of this folder."""

from collections.abc import Iterator

import pytest

from tests.remote.connections import Connections
from tests.remote.hosts import Lab


@pytest.fixture
def connections() -> Iterator[Connections]:
    """Makes connections to the relays of fake_relays.py."""
    made = Connections()
    yield made
    made.close()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Two hosts, which ssh reaches."""
    with pytest.MonkeyPatch.context() as patch, Lab() as made:
        patch.setenv("OVERLAPTOP_SSH", str(made.ssh))
        yield made
