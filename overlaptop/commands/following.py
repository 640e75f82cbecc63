"""Sending a command to a job and following it, without a screen."""

from __future__ import annotations

from collections.abc import Iterator

from overlaptop.commands import CommandError
from overlaptop.commands.hosts import pause
from overlaptop.commands.once import settle
from overlaptop.commands.stream import is_lost
from overlaptop.fleet.commands import CommandView
from overlaptop.tui import Session
from overlaptop.wire.messages import Command

TICK_S = 0.05


def send(session: Session, command: Command) -> None:
    """Send it once the job is known. CommandError where it cannot be sent."""
    settle(session)
    if fault := session.send(command):
        raise CommandError(fault)


def views(session: Session, command: Command) -> Iterator[CommandView]:
    """What is known of a command that was sent, again and again until every rank has said its last word.

    Raises CommandError where that will never be known.
    """
    while True:
        snapshot = session.tick()
        view = next((each for each in snapshot.commands if each.id == command.id), None)
        if view is None:
            raise CommandError("the job was started anew, or another one has taken its place")
        yield view
        if view.done:
            return
        if is_lost(snapshot):
            raise CommandError("the line to the job broke and did not come back")
        pause(session, TICK_S)
