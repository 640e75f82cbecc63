"""Following a job without a screen: waiting for what it reports, commands carried out, and a lost job."""

from __future__ import annotations

import time
from collections.abc import Iterator

from overlaptop.console import CommandError
from overlaptop.console.hosts import pause
from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import LinkState, RankView, Snapshot
from overlaptop.wire.messages import Command

TICK_S = 0.05
LIMIT_S = 3.0
"""A hub sends its history at once; ranks that are not there by then are shown as unknown."""
HISTORY_LIMIT_S = 60.0
"""For a history that still comes, over a narrow line say."""
LOST_LIMIT_S, LINES_LOST_LIMIT_S = 10.0, 120.0
"""A hub that died is replaced within a second or two. The line to another host may come back after longer,
being tried every 30 s or so."""


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


def settle(session: Session) -> Snapshot:
    """Return the first snapshot of the present that knows a step of each rank, or the best that LIMIT_S
    brings.

    Raises CommandError when the job's hub does not answer, or does not come to the end of its history.
    """
    began_s = time.monotonic()
    while True:
        snapshot = session.tick()
        if snapshot.ranks and not snapshot.replaying and all(map(_has_told, snapshot.ranks)):
            return snapshot
        still_tells = snapshot.replaying and snapshot.link is LinkState.LIVE
        limit_s = HISTORY_LIMIT_S if still_tells else LIMIT_S
        if time.monotonic() - began_s > limit_s or snapshot.link is LinkState.ENDED:
            break
        pause(session, TICK_S)
    why = snapshot.link_note or snapshot.link.value
    if snapshot.job is None:
        raise CommandError(f"the job does not answer ({why})")
    if snapshot.replaying:
        raise CommandError(f"the job has told its history only, not its present state ({why}): try again")
    return snapshot


def _has_told(view: RankView) -> bool:
    return view.ended or view.last is not None


def is_lost(snapshot: Snapshot) -> bool:
    """Whether the line to the job broke, and so long ago that it is not waited for any more."""
    lost_s = (snapshot.at_ns - snapshot.link_since_ns) / 1e9
    limit_s = LINES_LOST_LIMIT_S if snapshot.nodes else LOST_LIMIT_S
    return snapshot.link is LinkState.LOST and lost_s > limit_s
