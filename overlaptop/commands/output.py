"""stdout and stderr: data, tables, messages and failures, in any encoding."""

import codecs
import io
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overlaptop import text

if TYPE_CHECKING:
    from overlaptop.launch.launcher import Launcher
    from overlaptop.records import Record

_ASCII = str.maketrans(
    {
        "µ": "u", "×": "x", "·": "|", "±": "+-", "●": "*", "○": "o", "◌": "o", "■": "#", "…": "...",
        "→": "->", "←": "<-", "—": "-", text.UNKNOWN: "-", text.AT_MOST: "<=", text.AT_LEAST: ">=",
        text.ABOUT: "~",
    }
)  # fmt: skip


class CommandError(Exception):
    """A command cannot go on; the message is one clear line, `status` the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def refusing(*faults: type[Exception], where: str = "", status: int = 2) -> Iterator[None]:
    """Raise a CommandError for these exceptions: ``where``, then the reason."""
    try:
        yield
    except faults as fault:
        why = text.reason(fault) if isinstance(fault, OSError) else str(fault)
        raise CommandError(f"{where}{why}", status) from fault


def print_data(*data: "str | Record") -> None:
    """Print on stdout at once: text, or each record as a line of JSON."""
    for each in data:
        if not isinstance(each, str):
            from overlaptop.records import as_json

            each = as_json(each)
        print(each, flush=True)  # noqa: T201


def print_message(message: str) -> None:
    print(f"overlaptop: {text.printable(message)}", file=sys.stderr, flush=True)  # noqa: T201


def job_failure(job: "Launcher") -> CommandError:
    """Return why a job that was started here failed; print its last lines on stderr."""
    for line in job.complaint():
        print(text.printable(line), file=sys.stderr)  # noqa: T201
    return CommandError(f"the job failed ({job.how_it_ended})", 2 if job.usage_error else 1)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()) -> str:
    """Return columns as wide as their widest cell, two spaces between. ``left``: the heads of columns of
    text; numbers are to the right.
    """
    cells = [list(head), *(list(map(text.printable, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def padded(row: Sequence[str]) -> Iterator[str]:
        for cell, width, name in zip(row, widths, head, strict=True):
            yield cell.ljust(width) if name in left else cell.rjust(width)

    return "\n".join("  ".join(padded(row)).rstrip() for row in cells)


def print_page(page: str, *, ascii_only: bool) -> None:
    """Print text on stdout, if asked for without characters that some terminals lack."""
    print_data(page.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else page)


def replace_unencodable() -> None:
    """Make stdout and stderr print ``?`` for what their encoding lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def drop_output() -> None:
    """Discard stdout: Python would flush it again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def needs_ascii() -> bool:
    """Return whether stdout's encoding lacks our characters, or draws them two cells wide."""
    encoding = getattr(sys.stdout, "encoding", None)
    return encoding is not None and not codecs.lookup(encoding).name.startswith("utf")
