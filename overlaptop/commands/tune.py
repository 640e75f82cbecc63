"""``overlaptop tune``: try values of a setting on a running job."""

from __future__ import annotations

import argparse
import re

from overlaptop.console.arguments import (
    add_hosts,
    hosts_of,
    job_key,
    make_parser,
    parse_with_script,
    positive,
)

DESCRIPTION = """\
Find the best value of a setting by trials: on a running job, or on SCRIPT, which is started under torchrun,
with an agent that allows it, and ended afterwards. SCRIPT is a bundled workload's name, or the path of a
script of your own; what follows -- goes to it:

  overlaptop tune --values 10,50,100                          bucket_cap_mb of the job that runs here
  overlaptop tune train.py --nproc 2 --range 1:400 -- --epochs 3

In a trial all ranks take a value at one step, and go back by themselves some steps later. Each value is
tried seven times or more, in random order, against the steps before and after. Trials of a value end once
its difference is known with 95 % confidence, or known to be less than 1 %.

Ctrl-C, or the death of this command, leaves nothing to undo: the job has the value that it had before.
"""
EPILOG = """\
stdout gets a table: each value, its step, its difference from the present value with the 95 % interval, the
number of trials, and a verdict: shorter, longer, no difference, not known. The last lines name the best
value and the line of code that makes it permanent. stderr gets the progress. With --json: a record for each
trial ("trial"), for each value ("value") and for the result ("result"). Times are ns, differences are
fractions of the present step, null is unknown.
exit status: 0 when all is known or the steps are spent, 1 when the trials ended before (the job ended or
refused, somebody else changed it), 2 for a usage error, 130 after Ctrl-C.
"""


def run(words: list[str]) -> int:
    """Try values on a running job, or on a script that is started for it."""
    usage = "overlaptop tune [SCRIPT] [options] [-- script's options]"
    parser = make_parser("overlaptop tune", DESCRIPTION, EPILOG, usage)
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="start this (default: a running job)")
    parser.add_argument(
        "--knob", default="bucket_cap_mb", metavar="NAME", help="the setting (default: %(default)s)"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--values",
        type=_values,
        default=(),
        metavar="V,V",
        help="try these (default: up to six around the present value, by factors of two)",
    )
    what.add_argument("--range", type=_range, metavar="A:B", help="try up to seven values from A to B")
    parser.add_argument(
        "--budget",
        type=positive,
        metavar="STEPS",
        help="begin no trial after so many steps (default: for each value 1,000, or 90 s if longer)",
    )
    parser.add_argument("--job", type=job_key, metavar="KEY", help="the running job, as --list names it")
    parser.add_argument("--keep", action="store_true", help="set the best value on the running job")
    parser.add_argument(
        "--nproc", type=positive, metavar="N", help="SCRIPT's processes (default: one a GPU, else 2)"
    )
    parser.add_argument("--json", action="store_true", help="print records, not a table and a line")
    add_hosts(parser)
    options, script_options = parse_with_script(parser, words)
    if options.script is None and (options.nproc is not None or "--" in words):
        parser.error("--nproc and what follows -- go with SCRIPT")
    if options.script is not None and (options.job is not None or options.keep):
        parser.error("--job and --keep are for a job that runs: give no SCRIPT with them")
    hosts = hosts_of(options)
    if options.script is not None and hosts is not None:
        parser.error("SCRIPT is started here: give no host with it")
    from overlaptop.console import tune

    least, most = options.range or (None, None)
    request = tune.TuneRequest(
        options.knob, options.values, least, most, options.budget, options.keep, options.json
    )
    if options.script is None:
        return tune.run_on_job(options.job, request, hosts)
    return tune.run_on_script(options.script, script_options, options.nproc, request)


def _values(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text) is None:
        raise argparse.ArgumentTypeError(f"must be whole numbers with commas between them, not {text!r}")
    return tuple(map(int, text.split(",")))


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(-?[0-9]{1,9}):(-?[0-9]{1,9})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"must be A:B, two whole numbers with A <= B, not {text!r}")
    return int(found[1]), int(found[2])
