"""What ended the script, where it did not end well."""

from __future__ import annotations

import re
import sys

MOST_CHARS = 200
MOST_READ_CHARS = 2000
_USER_INFO = re.compile(
    # user:password, where the password may have an @ in it, or a slash unless it looks like a port
    r"(?<=://)(?:([^\s/@:]*:)(?!\d{1,5}/)(?:[^\s/]*|[^\s@]*)|[^\s/@:]+)@"
)
"""Before the host of a URL: a user with a password, or a token alone."""


def failure_of(end: BaseException) -> str:
    """The exception, or the exit status that it asks for, in one line; empty: the script ended well."""
    if isinstance(end, SystemExit):
        if isinstance(end.code, int):
            return f"exit status {int(end.code)}" if end.code else ""
        return "" if end.code is None else f"exit status 1: {_line(end)}"
    words = _line(end)
    return f"{type(end).__name__}: {words}" if words else type(end).__name__


def failure_at_exit() -> str:
    """What Python has shown as the reason for this end, of a script that was not started by the agent."""
    shown = getattr(sys, "last_value", None)
    # At a prompt it is of an earlier input.
    return "" if shown is None or hasattr(sys, "ps1") else failure_of(shown)


def failure_under_way() -> str:
    """What ends this process just now; empty: nothing, or Ctrl-C.

    torch.multiprocessing turns what a rank has raised into an exit status.
    """
    end = sys.exception()
    if isinstance(end, SystemExit) and end.code and isinstance(end.__context__, Exception):
        end = end.__context__
    return "" if end is None or isinstance(end, KeyboardInterrupt) else failure_of(end)


def _line(fault: BaseException) -> str:
    try:
        lines = str(fault).strip().splitlines()
    except Exception:  # noqa: BLE001 - it is the script's own code
        return ""
    return _USER_INFO.sub(r"\1***@", lines[0][:MOST_READ_CHARS])[:MOST_CHARS] if lines else ""
