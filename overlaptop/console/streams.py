"""stdout and stderr, whatever their encoding can hold."""

from __future__ import annotations

import codecs
import io
import os
import sys

from overlaptop import text

_ASCII = str.maketrans(
    {
        "µ": "u", "×": "x", "·": "|", "±": "+-", "●": "*", "○": "o", "◌": "o", "■": "#", "…": "...",
        "→": "->", "←": "<-", "—": "-", text.UNKNOWN: "-", text.AT_MOST: "<=", text.AT_LEAST: ">=",
        text.ABOUT: "~",
    }
)  # fmt: skip
_ERRORS = "overlaptop.ascii"


def plain(page: str) -> str:
    """Return `page` in ASCII."""
    return page.translate(_ASCII).encode("ascii", "replace").decode()


def replace_unencodable() -> None:
    """Make stdout and stderr print in ASCII what their encoding lacks, instead of raising."""
    codecs.register_error(_ERRORS, _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def drop_output() -> None:
    """Send stdout nowhere: Python would flush it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def needs_ascii() -> bool:
    """Whether stdout's encoding lacks the characters we draw, or draws them two cells wide."""
    encoding = getattr(sys.stdout, "encoding", None)
    return encoding is not None and not codecs.lookup(encoding).name.startswith("utf")


def _replacement(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return plain(error.object[error.start : error.end]), error.end
