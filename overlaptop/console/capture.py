"""The work of ``overlaptop capture``: have ranks run torch.profiler for some steps, without a screen."""

from __future__ import annotations

from contextlib import closing

from overlaptop.console import CommandError, print_data
from overlaptop.console.following import follow, send
from overlaptop.console.hosts import Hosts, host_of
from overlaptop.console.jobs import join
from overlaptop.fleet.commands import FAILED, CommandView, RankProgress
from overlaptop.fleet.session import Session
from overlaptop.report.hosts import path_there
from overlaptop.text import printable
from overlaptop.wire import commands
from overlaptop.wire.commands import ENDED_BADLY, WRITTEN, Command


def run(key: str | None, steps: int, hosts: Hosts | None = None, *, as_json: bool) -> int:
    """Capture `steps` steps of the job called `key`, or of the only one.

    Progress goes to stderr; stdout gets a line for each rank as soon as its trace is written: the path, or
    a record. Raises CommandError when a rank did not write one.
    """
    try:
        command = commands.make(commands.CAPTURE, {"steps": steps})
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    with closing(join(key, hosts)) as session:
        send(session, command)
        print_traces(session, command, as_json=as_json)
    return 0


def print_traces(session: Session, command: Command, *, as_json: bool) -> None:
    """Print what each rank has written, until the capture is over on all of them."""
    written: set[int] = set()
    for capture in follow(session, command, final=(FAILED,)):
        for rank in capture.ranks:
            if rank.rank not in written and (rank.state == WRITTEN or (as_json and capture.done)):
                written.add(rank.rank)
                host = host_of(session, rank.rank)
                record = _record(session.job_key, host, capture, rank)
                print_data(record if as_json else printable(path_there(host, rank.text)))
    if capture.state == FAILED:
        raise CommandError(f"no capture: {capture.reason}")


def _record(job: str | None, host: str, capture: CommandView, rank: RankProgress) -> dict[str, object]:
    return {
        "type": "capture",
        "job": job,
        "id": capture.id,
        "rank": rank.rank,
        "state": rank.state,
        "step": capture.step,
        "path": rank.text if rank.state == WRITTEN else None,
        "reason": rank.text if rank.state in ENDED_BADLY else None,
        "live_overlap": rank.live_overlap,
        "host": host or None,
    }
