"""``overlaptop tune``: find the best value of a setting by measurement, without a screen."""

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
from overlaptop.wire.protocol import LEASE_S

DESCRIPTION = f"""\
Find the best value of a setting by measurement: on a running job, or on SCRIPT, which is started under
torchrun, with an agent that allows it, and ended afterwards. SCRIPT is a bundled workload's name, or the
path of a script of your own; what follows -- goes to it:

  overlaptop tune --range 1:400                               bucket_cap_mb of the job that runs here
  overlaptop tune train.py --nproc 2 --range 1:400 -- --epochs 3

Windows of steps with one value each are measured in turn: first nine values in even factors, then round by
round half as many, and values beside the best. A value that takes longer beyond doubt is left out (after
one window only where it takes far longer, for the machine may have changed meanwhile). The search ends when
none can be better than the best by more than 1 %, with 95 % confidence, or when the budget is spent: unless
--budget says otherwise, 22 windows, or as many as the noise of the steps asks for, 2,000 steps at most.

The running job goes on with the value that it had before, unless --keep is given; so it does after Ctrl-C,
SIGTERM, and when this command dies: then its hub goes back after {LEASE_S:.0f} seconds of silence. A change
by somebody else meanwhile ends the search, and stays.
"""
EPILOG = """\
stdout gets a table of the values (their step time, and in what interval it lies with 95 % confidence) and
at last one line: the best setting, what it saves, how sure, which one the job has now, and where a step is
shorter with it beyond noise, the line of code that makes it permanent. So it does after Ctrl-C, with what
was measured until then. stderr gets the progress. With --json, a record for each window ("window"), then
one for each value ("point") and one for the result ("result"); times are ns, shares fractions, null is
unknown.
exit status: 0 when a best value is told (known: false in the result's record where the budget was spent
first), 1 when it was ended before (the job ended or refused, somebody else changed it: what was found so
far is told), 2 for a usage error, 130 after Ctrl-C and 143 after SIGTERM, once the value is what it was.
"""


def run(words: list[str]) -> int:
    """Search on a running job, or on a script that is started for it."""
    usage = "overlaptop tune [SCRIPT] [options] [-- script's options]"
    parser = make_parser("overlaptop tune", DESCRIPTION, EPILOG, usage)
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="start this (default: a running job)")
    parser.add_argument(
        "--knob", default="bucket_cap_mb", metavar="NAME", help="the setting (default: %(default)s)"
    )
    parser.add_argument(
        "--range",
        type=_range,
        metavar="A:B",
        help="from A to B, and the present value wherever it lies (default: 1:400 for bucket_cap_mb, "
        "else all that is allowed)",
    )
    parser.add_argument(
        "--budget",
        type=positive,
        metavar="STEPS",
        help="begin no window after so many steps (12 or more); the last one may end later",
    )
    parser.add_argument("--job", type=job_key, metavar="KEY", help="the running job, as --list names it")
    parser.add_argument("--keep", action="store_true", help="leave the running job with the best value")
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
    from overlaptop.tuning.search import SearchOptions

    window_steps = SearchOptions().window_steps
    if options.budget is not None and options.budget < window_steps:
        parser.error(f"--budget must be {window_steps} steps or more: one window takes {window_steps}")
    least, most = options.range or (None, None)
    request = tune.TuneRequest(options.knob, least, most, options.budget, options.keep, options.json)
    if options.script is None:
        return tune.run_on_job(options.job, request, hosts)
    return tune.run_on_script(options.script, script_options, options.nproc, request)


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(-?[0-9]{1,9}):(-?[0-9]{1,9})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"must be A:B, two whole numbers with A <= B, not {text!r}")
    return int(found[1]), int(found[2])
