"""``overlaptop set``: what can be changed of a running job, and changing it on all its ranks."""

from __future__ import annotations

import argparse
import re

from overlaptop.console.arguments import add_hosts, hosts_of, job_key, make_parser

DESCRIPTION = """\
Change a setting of a running job, on all its ranks in the same step, or on none. Without NAME=VALUE: show
what can be changed of the job, to what, and what cannot just now and why. A bundled workload obeys; a job
of your own does when it was started with --control or attach(control=True):

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py

NAME=script gives back the value that the script gave. Among others there is:
  bucket_cap_mb  MiB a bucket of its DistributedDataParallel model, 1 to 10000. Its buckets are made anew
                 between two steps; gradients stay what they were, but for the order of sums with more than
                 two ranks. The model must be the only one, and not compiled
"""
EPILOG = """\
stdout gets a line when all ranks have changed it (bucket_cap_mb 25 → 50 at step 1,234), stderr progress. A
record of --json holds type ("knob"), job, knob, value (null: no whole number, or not known), value_text,
original_text (the script's own), least, most, choices (null: all between), unit, owner, about, code (the
line that makes a value permanent), differs (true while ranks have different values) and refusal (null: it
can be changed). overlaptop changes lists what was changed, from what to what, and by whom.
overlaptop tune --values tells what a value does to the step before it is set.
exit status: 0 when all ranks have changed it, or had this value already, which is not sent; 1 when none has
and when one failed, 2 for a usage error, 130 after Ctrl-C (the job and a change under way go on).
"""


def run(words: list[str]) -> int:
    """Show the knobs, or change one."""
    parser = make_parser("overlaptop set", DESCRIPTION, EPILOG)
    parser.add_argument(
        "change", type=_change, nargs="?", metavar="NAME=VALUE", help="what to set, and to what"
    )
    parser.add_argument("--job", type=job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument(
        "--json", action="store_true", help="without NAME=VALUE: print records, not a table"
    )
    add_hosts(parser)
    options = parser.parse_args(words)
    if options.json and options.change is not None:
        parser.error("--json goes without NAME=VALUE")
    hosts = hosts_of(options)
    from overlaptop.console import setting

    if options.change is None:
        return setting.show(options.job, hosts, as_json=options.json)
    name, value = options.change
    return setting.run(options.job, name, value, hosts)


def _change(text: str) -> tuple[str, int | None]:
    name, _, value = text.partition("=")
    if not (name and re.fullmatch(r"-?[0-9]{1,9}|script", value)):
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE with a whole number or script, not {text!r}")
    return name, None if value == "script" else int(value)
