"""Follow a job without a screen: its state, a running command, a lost connection."""

import time
from collections.abc import Callable, Collection, Iterator

from overlaptop.commands.output import CommandError, print_message
from overlaptop.fleet.commands import SENT, CommandView
from overlaptop.fleet.hosts_session import HostsSession
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report.who_is_late import CLEAR_STEPS, needs_steps
from overlaptop.wire.commands import Command

TICK_S = 0.05
LIMIT_S = 3.0
"""Time limit for each rank's first step; a hub sends its history at once. Others count as unknown."""
COMPARED_STEPS = 8
"""Steps of all ranks needed before the late rank is printed. Up to CLEAR_STEPS, if none is clearly late."""
MORE_STEPS = 4  # Extra steps until the first measured one, and until the last has arrived
BURST_S, WAITS_LIMIT_S = 8.0, 30.0
"""Shortest and longest time limit for these steps. Where launches are slow, a burst takes the former; for
more than the latter, the dashboard is the better tool."""
EXIT_S = 5.0  # Longest time from a rank's report that it ends to the end of its process and its exit status
HISTORY_LIMIT_S = 60.0  # Time limit for a history that still arrives, over a slow connection
LOST_LIMIT_S, REMOTE_LOST_LIMIT_S = 10.0, 120.0
"""Time limits for a lost connection. A dead hub is replaced within a second or two. The connection to
another host is tried about every 30 s."""


def pause(session: Session | None) -> None:
    if isinstance(session, HostsSession):
        session.pause(TICK_S)
    else:
        time.sleep(TICK_S)


def send(session: Session, command: Command) -> None:
    """Send a command once the job is known. CommandError if it cannot be sent."""
    settle(session)
    if fault := session.send(command):
        raise CommandError(fault)


def follow(
    session: Session, command: Command, final: Collection[str]
) -> Iterator[tuple[CommandView, Snapshot]]:
    """Yield the state of a sent command and of the job, until every rank has reported its end.

    A new state is printed on stderr, unless it is one of `final`. CommandError if the state cannot be
    known.
    """
    printed = SENT
    while True:
        snapshot = session.tick()
        view = snapshot.command(command.id)
        if view is None:
            raise CommandError("the job is over: it was started again, or another one has taken its place")
        if view.state not in (printed, *final):
            printed = view.state
            step = f" on step {view.step}" if view.state == "agreed" else ""
            print_message(f"{view.words}: {view.state}{step}")
        yield view, snapshot
        if view.done:
            return
        require_connection(snapshot)
        pause(session)


def until_end(session: Session, job_gone: Callable[[], bool] = lambda: False) -> Iterator[Snapshot]:
    """Yield the session's Snapshots until its job and all processes of it have ended. CommandError if the
    connection is lost. ``job_gone``: whether the job has ended, also before it had a rank.
    """
    ended_s: float | None = None
    while True:
        gone = job_gone()  # asked first, so that earlier steps are still seen
        snapshot = session.tick()
        yield snapshot
        if snapshot.hub_state is HubState.ENDED or gone:
            ended_s = ended_s or time.monotonic()
            ends = [view.end for view in snapshot.ranks if view.end is not None]
            if all(end.exit_code is not None for end in ends) or time.monotonic() - ended_s > EXIT_S:
                return
        require_connection(snapshot)
        pause(session)


def settle(session: Session) -> Snapshot:
    """Return the first snapshot with a step of each rank, or the best one within LIMIT_S. CommandError if
    the hub does not answer, or does not finish its history.
    """
    began_s = time.monotonic()
    while True:
        snapshot = session.tick()
        stepped = bool(snapshot.ranks) and all(view.ended or view.last for view in snapshot.ranks)
        if stepped and not snapshot.replaying:
            return snapshot
        still_comes = snapshot.replaying and snapshot.hub_state is HubState.LIVE
        limit_s = HISTORY_LIMIT_S if still_comes else LIMIT_S
        if time.monotonic() - began_s > limit_s or snapshot.hub_state is HubState.ENDED:
            break
        pause(session)
    why = snapshot.hub_note or snapshot.hub_state.value
    if snapshot.job is None:
        raise CommandError(f"the job does not answer ({why})")
    if snapshot.replaying:
        raise CommandError(f"the job has sent its history only, not its present state ({why}): try again")
    return snapshot


def settle_waits(session: Session) -> Snapshot:
    """Settle, then watch the compared ranks until enough steps have a wait/transfer breakdown to say who is
    late, or the time that they should take is over.
    """
    snapshot = settle(session)
    session.watch(snapshot.compared)
    began_s, announced = time.monotonic(), False
    while len(snapshot.step_waits) < COMPARED_STEPS or needs_steps(snapshot):
        known = snapshot.totals.measured_step is not None and snapshot.hub_state is HubState.LIVE
        limit_s = _waits_limit_s(snapshot)
        if len(snapshot.compared) < 2 or not known or time.monotonic() - began_s > limit_s:
            break
        if limit_s > BURST_S and not announced:
            announced = True
            print_message(f"waiting up to {limit_s:.0f} s for enough measured steps to say who is late")
        pause(session)
        snapshot = session.tick()
        session.watch(snapshot.compared)
    return snapshot


def _waits_limit_s(snapshot: Snapshot) -> float:
    """Return the time that CLEAR_STEPS take. With a trouble they may never come."""
    if trouble_of(snapshot) is not None:
        return LIMIT_S
    one_in = max(
        len(view.history) / (sum(step.measured for step in view.history) or 1) for view in snapshot.ranks
    )
    steps = CLEAR_STEPS * one_in + MORE_STEPS
    return max(BURST_S, min(steps * (snapshot.totals.step_ns or 0) / 1e9, WAITS_LIMIT_S))


def require_job(snapshot: Snapshot, since_s: float) -> None:
    """Raise CommandError if the job has not answered within the limit since this monotonic time."""
    if snapshot.job is None and time.monotonic() - since_s > _lost_limit_s(snapshot):
        raise CommandError(f"the job does not answer ({snapshot.hub_note})")


def require_connection(snapshot: Snapshot) -> None:
    """Raise CommandError if the connection to the job broke and did not come back within the limit."""
    lost_s = (snapshot.at_ns - snapshot.hub_since_ns) / 1e9
    if snapshot.hub_state is HubState.LOST and lost_s > _lost_limit_s(snapshot):
        raise CommandError("the connection to the job broke and did not come back")


def _lost_limit_s(snapshot: Snapshot) -> float:
    return REMOTE_LOST_LIMIT_S if snapshot.nodes else LOST_LIMIT_S


def report_connections(snapshot: Snapshot, lost: set[str]) -> None:
    """Print on stderr which hosts are lost or back since the last snapshot. `lost`: those lost then."""
    for node in snapshot.nodes:
        if node.lost and node.name not in lost:
            lost.add(node.name)
            print_message(f"{node.name}: lost" + (f": {node.note}" if node.note else ""))
        elif not node.lost and node.name in lost:
            lost.discard(node.name)
            print_message(f"{node.name}: back")
