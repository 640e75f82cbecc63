"""``overlaptop relay --stdio``: what a dashboard elsewhere starts on this host, over ssh."""

from __future__ import annotations

from overlaptop.console.arguments import make_parser

DESCRIPTION = """\
What `overlaptop HOST` starts on that host: it joins this user's jobs there, and sends
what they measure over its standard output. It opens no port, and ends when its standard input does, or
when nothing has come from there for 15 seconds. Where a key should only show the jobs of its user, its line
in ~/.ssh/authorized_keys may begin with

  restrict,command="/path/to/python -m overlaptop relay --stdio --readonly"
"""
EPILOG = """\
stdout carries at most 512 KiB a second, and less where the connection is narrow or its user wants it so.
exit status: 0, or 2 for a usage error. environment: OVERLAPTOP_DIR.
"""


def run(words: list[str]) -> int:
    """Relay until standard input ends."""
    parser = make_parser("overlaptop relay", DESCRIPTION, EPILOG)
    parser.add_argument(
        "--stdio", action="store_true", required=True, help="relay over standard input and output"
    )
    parser.add_argument("--readonly", action="store_true", help="pass no command on to a job")
    options = parser.parse_args(words)
    from overlaptop.console import relay

    return relay.run(readonly=options.readonly)
