"""``overlaptop changes``: the log of what was changed of this user's jobs on this machine."""

from __future__ import annotations

from overlaptop.console.arguments import job_key, make_parser

DESCRIPTION = """\
Show the last 200 changes of the settings of your jobs on this machine, oldest first: when, from what to
what, who asked, and where one was not made, why.
"""
EPILOG = """\
A record of --json holds type ("change"), at_ns (Unix time), job, script, host, by, knob, was, becomes (what
was asked for where it was not made), step, outcome (changed, refused, busy, failed, unknown), reason and
command (its id). They come from changes.jsonl in the folder of the jobs' sockets, whose older part is
changes.jsonl.1, some 2 MB in all. exit status: 0; 1 where no job of that key runs or was changed; 2 for a
usage error.
"""


def run(words: list[str]) -> int:
    """Print the log."""
    parser = make_parser("overlaptop changes", DESCRIPTION, EPILOG)
    parser.add_argument("--job", type=job_key, metavar="KEY", help="of this job only")
    parser.add_argument("--json", action="store_true", help="print records, not a table")
    options = parser.parse_args(words)
    from overlaptop.console import changes

    return changes.run(options.job, as_json=options.json)
