"""What the tests of all rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.warm import Warm


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts processes that have torch already: see warm.py."""
    server = Warm()
    yield server
    server.close()
