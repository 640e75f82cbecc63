"""The command line: picks the command, and turns failures into one line and a status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from overlaptop.commands import COMMANDS
from overlaptop.console import CommandError, print_message
from overlaptop.jobs.descriptors import fill_standard


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (None: ours) asks for and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    fill_standard()
    try:
        return _run(words)
    except CommandError as failure:
        print_message(str(failure))
        return failure.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has had enough (`| head`). Python would flush stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


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
