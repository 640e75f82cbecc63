"""Sending a command to a job and following it, without a screen."""

from __future__ import annotations

import time
from collections.abc import Iterator

from overlaptop.commands import CommandError
from overlaptop.commands.choice import choose
from overlaptop.commands.once import settle
from overlaptop.commands.stream import LOST_LIMIT_S, link_age_s
from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.session import JobSelector, JobSession
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire.messages import Command

TICK_S = 0.05


def join_job(key: str | None) -> JobSession:
    """A line to the job called `key`, or to the only one; close it. CommandError where there is none."""
    return JobSession(JobSelector(key=choose(key, wait=False).job))


def send(session: JobSession, command: Command) -> None:
    """Send it once the job is known. CommandError where it cannot be sent."""
    settle(session)
    if fault := session.send(command):
        raise CommandError(fault)


def views(session: JobSession, command: Command) -> Iterator[CommandView]:
    """What is known of a command that was sent, again and again until every rank has said its last word.

    Raises CommandError where that will never be known.
    """
    while True:
        snapshot = session.tick()
        view = next((each for each in snapshot.commands if each.id == command.id), None)
        if view is None:
            raise CommandError("the job was replaced by another one")
        yield view
        if view.done:
            return
        if snapshot.link is LinkState.LOST and link_age_s(snapshot) > LOST_LIMIT_S:
            raise CommandError("the line to the job broke and did not come back")
        time.sleep(TICK_S)
