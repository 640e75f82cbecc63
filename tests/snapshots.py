"""Texts as files. ``UPDATE_SNAPSHOTS=1`` writes them anew: look at the difference before committing it."""

import os
import re
from pathlib import Path


def check(path: Path, text: str) -> None:
    """Assert that the file has this text."""
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def check_page(folder: Path, name: str, text: str) -> None:
    """Assert that the page of this name, in words, has this text."""
    check(folder / f"{re.sub('[^a-z0-9_]+', '-', name.lower())}.txt", text.rstrip("\n") + "\n")
