"""The command line: picks the command, and turns failures into one line and a status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from overlaptop.commands import COMMANDS
from overlaptop.console import CommandError, print_message
from overlaptop.console.streams import drop_output, replace_unencodable
from overlaptop.jobs.descriptors import fill_standard

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (None: ours) asks for and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    fill_standard()
    replace_unencodable()
    try:
        try:
            return _run(words)
        finally:
            if sys.stdout is not None:  # it was closed when we started
                sys.stdout.flush()
    except CommandError as failure:
        print_message(str(failure))
        return failure.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        drop_output()  # the reader has had enough (`| head`)
        return 0
    except OSError as fault:
        if fault.errno not in _UNWRITABLE or fault.filename is not None:
            raise
        drop_output()
        with suppress(OSError):  # stderr may be the same file
            print_message(f"stdout cannot be written: {os.strerror(fault.errno).lower()}")
        return 1


def _run(words: list[str]) -> int:
    # A parser for each command, not one with subcommands: argparse would let `overlaptop --json demo` pass,
    # and forget the --json.
    name = COMMANDS.get(words[0]) if words else None
    if name is None:
        name = "watch"
    else:
        words = words[1:]
    status: int = import_module(f"overlaptop.commands.{name}").run(words)
    return status
