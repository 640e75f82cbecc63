"""``overlaptop [HOST ...]``: the dashboard, ``--once``, ``--json`` and ``--list``."""

import argparse
import json
from collections.abc import Sequence
from difflib import get_close_matches

from overlaptop.commands import COMMANDS
from overlaptop.commands.arguments import add_flag, add_hosts, add_job, add_screen, add_value, positive
from overlaptop.commands.output import CommandError, print_data
from overlaptop.records import schema
from overlaptop.workloads.catalog import WORKLOADS

DESCRIPTION = """\
Show a running job in the dashboard, or with --once and --json the same as text or records. If several jobs
run, a list of them opens.
"""
EPILOG = """\
exit status: 0, or 1 when there is no job (--list: 0) or it failed, 2 for a usage error or when --job is
needed, 130 after Ctrl-C.
"""

_MEANT = {name: name for name in COMMANDS} | {each.name: f"demo {each.name}" for each in WORKLOADS}
_MEANT |= {name: f"--{name}" for name in ("list", "once", "json", "help", "version")}
_MEANT |= {"jobs": "--list", "status": "--once"}
"""What a word may mean that is no host."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "overlaptop [watch] [HOST ...] [options]"
    add_job(parser, "the job to watch, as --list names it")
    add_flag(parser, "--list", "list the jobs that run here or there, and end")
    add_flag(parser, "--json", "print a line of JSON for each rank and step, until the job ends")
    add_flag(parser, "--once", "print the present state as a table (--json: as records), and end")
    add_value(parser, "--steps", "N", "with --json: end after N steps of each rank", type=positive)
    add_flag(parser, "--detail", "with --json: have the ranks measure as many steps as for a dashboard")
    add_flag(parser, "--wait", "with --json or --once: wait for a job if there is none")
    add_flag(parser, "--readonly", "the dashboard only shows: it changes, captures and starts nothing")
    add_flag(parser, "--json-schema", "print the JSON schema of all records, and end")
    add_hosts(parser, as_words=True)
    add_screen(parser)


def run(options: argparse.Namespace) -> int:
    if misplaced := next((word for word in options.host if word in COMMANDS), None):
        raise CommandError(
            f"{misplaced} is a command and comes first; a host of that name is ssh://{misplaced}", 2
        )
    for name in ("steps", "detail"):
        if vars(options)[name] and (options.once or not options.json):
            raise CommandError(f"--{name} goes with --json", 2)
    if options.list and (options.once or options.wait or options.job is not None):
        raise CommandError("--list goes with no other option than --json, and hosts", 2)
    if options.json_schema:
        print_data(json.dumps(schema(), indent=2))
        return 0
    # Each imports much that the others do not need.
    if options.list:
        from overlaptop.commands.jobs import run as show
    elif options.once:
        from overlaptop.commands.once import run as show
    elif options.json:
        from overlaptop.commands.stream import run as show
    else:
        from overlaptop.commands.dashboard import run as show
    try:
        return show(options)
    except CommandError as failure:
        # Only now: a host may have any name.
        if meant := _meant(options.host):
            raise CommandError(f"{failure}; did you mean: {meant}", failure.status) from failure
        raise


def _meant(words: Sequence[str]) -> str:
    """Return the command line that a word, parsed as a host, may have meant; else empty."""
    if script := next((word for word in words if word.endswith(".py")), None):
        return f"torchrun --nproc-per-node=N -m overlaptop.agent {script}"
    close = (get_close_matches(word, _MEANT, 1, cutoff=0.75) for word in words)
    return next((f"overlaptop {_MEANT[found[0]]}" for found in close if found), "")
