"""``overlaptop capture``: have a job's ranks run torch.profiler for some steps, without a screen."""

from __future__ import annotations

import json
import sys

from overlaptop.console import CommandError, say
from overlaptop.console.choice import join
from overlaptop.console.following import send, views
from overlaptop.console.hosts import Hosts, home_of
from overlaptop.fleet.commands import FAILED, SENT, CommandView, RankProgress
from overlaptop.fleet.session import Session
from overlaptop.report.hosts import path_there
from overlaptop.text import printable
from overlaptop.wire import commands
from overlaptop.wire.messages import ENDED_BADLY, WRITTEN, Command


def run(key: str | None, steps: int, hosts: Hosts | None = None, *, as_json: bool) -> int:
    """Capture `steps` steps of the job called `key`, or of the only one.

    Progress goes to stderr; stdout gets a line for each rank as soon as its trace is written: the path, or
    a record. Raises CommandError when a rank did not write one.
    """
    try:
        command = commands.make(commands.CAPTURE, {"steps": steps})
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    session = join(key, hosts)
    try:
        send(session, command)
        return follow(session, command, as_json=as_json)
    finally:
        session.close()


def follow(session: Session, command: Command, *, as_json: bool) -> int:
    """Say how far a command that was sent is, until every rank has said its last word."""
    told = SENT
    written: set[int] = set()
    for capture in views(session, command):
        if capture.state not in (told, FAILED):
            told = capture.state
            say(_words(capture))
        for rank in capture.ranks:
            if rank.rank not in written and (rank.state == WRITTEN or (as_json and capture.done)):
                written.add(rank.rank)
                home = home_of(session, rank.rank)
                said = (
                    _record(session.job_key, home, capture, rank)
                    if as_json
                    else printable(path_there(home, rank.text))
                )
                print(said)  # noqa: T201
                sys.stdout.flush()
    if capture.state == FAILED:
        raise CommandError(f"no capture: {capture.reason}")
    return 0


def _words(capture: CommandView) -> str:
    steps = f" on step {capture.step}" if capture.state == "agreed" else ""
    return f"{capture.words}: {capture.state}{steps}"


def _record(job: str | None, home: str, capture: CommandView, rank: RankProgress) -> str:
    return json.dumps(
        {
            "type": "capture",
            "job": job,
            "id": capture.id,
            "rank": rank.rank,
            "state": rank.state,
            "step": capture.step,
            "path": rank.text if rank.state == WRITTEN else None,
            "reason": rank.text if rank.state in ENDED_BADLY else None,
            "live_overlap": rank.live_overlap,
            "host": home or None,
        }
    )
