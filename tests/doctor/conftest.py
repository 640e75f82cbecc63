"""What the doctor's tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Shorter than pytest's own: the names of sockets lie below it."""
    with tempfile.TemporaryDirectory(prefix="ot-") as folder:
        yield Path(folder)
