"""``overlaptop capture``: have a job's ranks run torch.profiler for some steps, without a screen."""

from __future__ import annotations

from overlaptop.console.arguments import add_hosts, hosts_of, job_key, make_parser, positive

DESCRIPTION = """\
Have all ranks of a running job run torch.profiler for N steps, from the same step on, and write a Chrome
trace each (rank0.json.gz, ...) to a new folder below overlaptop-captures, where the job was started, or
below the temporary directory where that cannot be written. A bundled workload obeys; a job of your own does
when it was started with --control or attach(control=True):

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py
"""
EPILOG = """\
stdout gets a line for each rank whose trace is written, stderr the progress. A record holds type
("capture"), job, id, rank, state, step (that on which the ranks agreed: the profiler settles in it and
the next two), path, reason, live_overlap (a fraction: measured by the agent in the steps just before;
null: not known) and host (the one on which the path is, as --host names it; null: this machine). Without
--json it is host:path.
exit status: 0 when all ranks have written, 1 when not, 2 for a usage error, 130 after Ctrl-C (the job and
a capture under way go on).
"""


def run(words: list[str]) -> int:
    """Capture, and follow it until all ranks have written."""
    parser = make_parser("overlaptop capture", DESCRIPTION, EPILOG)
    parser.add_argument(
        "--steps", type=positive, default=5, metavar="N", help="steps to record, 1 to 100 (default 5)"
    )
    parser.add_argument("--job", type=job_key, metavar="KEY", help="the job, as --list names it")
    parser.add_argument("--json", action="store_true", help="print a record for each rank, not its path")
    add_hosts(parser)
    options = parser.parse_args(words)
    hosts = hosts_of(options)
    from overlaptop.console import capture

    return capture.run(options.job, options.steps, hosts, as_json=options.json)
