"""What commands without a screen share: which job, tables, what is said on stderr."""

from __future__ import annotations

import sys


class CommandError(Exception):
    """A command cannot go on; the message is one clear line, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def say(message: str) -> None:
    """Tell the person at the terminal something that is no data."""
    from overlaptop.text import printable

    print(f"overlaptop: {printable(message)}", file=sys.stderr, flush=True)  # noqa: T201
