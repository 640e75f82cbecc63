"""``overlaptop slack``: which ranks are on the critical path of a running job."""

from __future__ import annotations

import argparse
import re

from overlaptop.console.arguments import add_hosts, hosts_of, job_key, make_parser, positive

DESCRIPTION = """\
Measure which ranks set the length of the step. Each rank in turn is delayed by a known time in each step of
a trial, and the slope of the step's length over the delay is printed. 1: the rank is on the critical path,
and making it faster makes the job faster. 0: it has slack: the job waits for something else anyway.

  overlaptop slack                          each rank, by 2 % of the step or more
  overlaptop slack --ranks 0,3 --delay 5ms

The job must have been started with --control, or be a bundled workload. It is slower meanwhile, and the
first line says by how much; its results stay the same to the bit. A trial ends by itself, so Ctrl-C, or the
death of this command, leaves nothing to undo.
"""
EPILOG = """\
stdout gets a table: rank, place, slope with its 95 % interval, number of trials, and a verdict: critical,
slack, partly critical, not known. Trials of a rank end once its interval reaches no farther than 0.2 to
each side, or when the steps are spent. stderr gets the progress. With --json: a record for each trial
("trial") and each rank ("rank"). Times are ns, null is unknown.
exit status: 0 when all is known or the steps are spent, 1 when the trials ended before (the job ended or
refused, somebody else changed it), 2 for a usage error, 130 after Ctrl-C.
"""


def run(words: list[str]) -> int:
    """Delay each rank in turn."""
    parser = make_parser("overlaptop slack", DESCRIPTION, EPILOG)
    parser.add_argument(
        "job", nargs="?", type=job_key, metavar="JOB", help="as --list names it (default: the only one)"
    )
    parser.add_argument(
        "--delay",
        type=_delay,
        default=(None, None),
        metavar="TIME",
        help="of each step: 5ms, 300us, or 2%% of it (default: 2%%, or three times its jitter if more)",
    )
    parser.add_argument("--ranks", type=_ranks, default=(), metavar="R,R", help="these only (default: all)")
    parser.add_argument(
        "--place",
        choices=("host", "gpu"),
        default="host",
        help="the training thread sleeps as a step begins, or a kernel spins on the current stream",
    )
    parser.add_argument(
        "--budget",
        type=positive,
        metavar="STEPS",
        help="begin no trial after so many steps (default: for each rank 1,000, or 90 s if longer)",
    )
    parser.add_argument("--json", action="store_true", help="print records, not a table")
    add_hosts(parser)
    options = parser.parse_args(words)
    hosts = hosts_of(options)
    from overlaptop.console import slack
    from overlaptop.wire.commands import GPU, HOST

    delay_ns, share = options.delay
    place = GPU if options.place == "gpu" else HOST
    request = slack.SlackRequest(options.ranks, delay_ns, share, place, options.budget, options.json)
    return slack.run(options.job, request, hosts)


def _delay(text: str) -> tuple[int | None, float | None]:
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(%|us|ms|s)", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"must be a time or a share, as 5ms or 2%, not {text!r}")
    if found[2] == "%":
        return None, float(found[1]) / 100
    return max(1, round(float(found[1]) * {"us": 1e3, "ms": 1e6, "s": 1e9}[found[2]])), None


def _ranks(text: str) -> tuple[int, ...]:
    if re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", text) is None:
        raise argparse.ArgumentTypeError(f"must be ranks with commas between them, not {text!r}")
    return tuple(dict.fromkeys(map(int, text.split(","))))
