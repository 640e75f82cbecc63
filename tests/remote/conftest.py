"""What the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.remote.lines import Lines


@pytest.fixture
def lines() -> Iterator[Lines]:
    """Makes lines to the far ends of far_ends.py."""
    made = Lines()
    yield made
    made.close()
