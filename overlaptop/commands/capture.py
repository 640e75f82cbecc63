"""``overlaptop capture``: run torch.profiler on a job's ranks for some steps, without a screen."""

import argparse

from overlaptop.commands.arguments import add_flag, add_hosts, add_job, add_value, hosts_of, positive
from overlaptop.commands.following import follow, send
from overlaptop.commands.jobs import join
from overlaptop.commands.output import CommandError, print_data, refusing
from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.session import Session
from overlaptop.records import CaptureRecord
from overlaptop.report.hosts import path_there
from overlaptop.text import printable
from overlaptop.wire import commands
from overlaptop.wire.commands import ENDED_BADLY, WRITTEN, Command, RankOutcome

DESCRIPTION = """\
Have all ranks of a running job run torch.profiler for N steps, from the same step on, and write a Chrome
trace each (rank0.json.gz, ...) to a new folder below overlaptop-captures, where the job was started, or
below the temporary directory where that cannot be written. A bundled workload obeys; a job of your own does
when it was started with --control or attach(control=True):

  torchrun --nproc-per-node=8 -m overlaptop.agent --control train.py
"""
EPILOG = """\
stdout gets a line for each rank whose trace is written: host:path, or with --json a record. stderr gets the
progress.
exit status: 0 when all ranks have written, 1 when not, 2 for a usage error, 130 after Ctrl-C (the job and
a capture under way go on).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_value(parser, "--steps", "N", "steps to record, 1 to 100 (default 5)", type=positive, default=5)
    add_job(parser, "the job, as --list names it")
    add_flag(parser, "--json", "print a record for each rank, not its path")
    add_hosts(parser)


def run(options: argparse.Namespace) -> int:
    hosts = hosts_of(options)
    with refusing(ValueError):
        command = commands.make(commands.CAPTURE, {"steps": options.steps})
    with join(options.job, hosts) as session:
        send(session, command)
        print_traces(session, command, as_json=options.json)
    return 0


def print_traces(session: Session, command: Command, *, as_json: bool) -> None:
    written: set[int] = set()
    for capture, snapshot in follow(session, command, final=(FAILED,)):
        for rank in capture.ranks:
            if rank.rank not in written and (rank.state == WRITTEN or (as_json and capture.done)):
                written.add(rank.rank)
                host = next((view.node for view in snapshot.ranks if view.rank == rank.rank), "")
                record = _record(session.job_key, host, capture, rank)
                print_data(record if as_json else printable(path_there(host, rank.text)))
    if capture.state == FAILED:
        raise CommandError(f"no capture: {capture.reason}")


def _record(job: str | None, host: str, capture: CommandView, rank: RankOutcome) -> CaptureRecord:
    live = capture.live.get(rank.rank)
    return CaptureRecord(
        job=job,
        id=capture.id,
        rank=rank.rank,
        state=rank.state,
        step=capture.step,
        path=rank.text if rank.state == WRITTEN else None,
        reason=rank.text if rank.state in ENDED_BADLY else None,
        live_overlap=live and live.overlap,
        host=host or None,
    )
