"""Describes why the script failed."""

import re
import sys

MOST_CHARS = 200
MOST_READ_CHARS = 2000
_USER_INFO = re.compile(
    # user:password, where the password may have an @ in it, or a slash unless it looks like a port
    r"(?<=://)(?:([^\s/@:]*:)(?!\d{1,5}/)(?:[^\s/]*|[^\s@]*)|[^\s/@:]+)@"
)
"""Credentials before the host of a URL: user and password, or a token."""


def failure_of(end: BaseException) -> str:
    """Return the exception, or its exit status, in one line; empty if the script succeeded."""
    if isinstance(end, SystemExit):
        if isinstance(end.code, int):
            return f"exit status {int(end.code)}" if end.code else ""
        return "" if end.code is None else f"exit status 1: {_line(end)}"
    words = _line(end)
    return f"{type(end).__name__}: {words}" if words else type(end).__name__


def failure_at_exit() -> str:
    """Return the exception that Python has shown, for scripts that the agent did not start."""
    shown = getattr(sys, "last_value", None)
    # At an interactive prompt, it is from an earlier input.
    return "" if shown is None or hasattr(sys, "ps1") else failure_of(shown)


def failure_under_way() -> str:
    """Return the exception that ends this process now; empty: none, or Ctrl-C.

    torch.multiprocessing turns a rank's exception into an exit status.
    """
    end = sys.exception()
    if isinstance(end, SystemExit) and end.code and isinstance(end.__context__, Exception):
        end = end.__context__
    return "" if end is None or isinstance(end, KeyboardInterrupt) else failure_of(end)


def _line(fault: BaseException) -> str:
    try:
        lines = str(fault).strip().splitlines()
    except Exception:  # noqa: BLE001 - __str__ is the script's own code
        return ""
    return _USER_INFO.sub(r"\1***@", lines[0][:MOST_READ_CHARS])[:MOST_CHARS] if lines else ""
