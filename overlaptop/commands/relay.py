"""``overlaptop relay --stdio``: a dashboard on another host starts this over ssh."""

import argparse
import os

from overlaptop import __version__
from overlaptop.commands.arguments import add_flag
from overlaptop.commands.output import CommandError
from overlaptop.relay.relay import Relay

DESCRIPTION = """\
What `overlaptop HOST` starts on that host: it lists this user's jobs there, and carries a
connection to one of their hubs over its standard input and output. It opens no port, and ends when its
standard input does, or when nothing has come from there for 15 seconds. Where a key should only show
the jobs of its user, its line in ~/.ssh/authorized_keys may begin with

  restrict,command="/path/to/python -m overlaptop relay --stdio --readonly"
"""
EPILOG = """\
exit status: 0, or 2 for a usage error. environment: OVERLAPTOP_DIR.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stdio", action="store_true", required=True, help="relay over standard input and output"
    )
    add_flag(parser, "--readonly", "reach hubs by the socket that takes no commands")


def run(options: argparse.Namespace) -> int:
    if os.isatty(0) or os.isatty(1):
        raise CommandError(
            "relay --stdio is not for a terminal: `overlaptop HOST` starts it on that host", 2
        )
    # Libraries' prints must not mix with the frames.
    reads, writes = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    Relay(reads, writes, version=__version__, readonly=options.readonly).run()
    return 0
