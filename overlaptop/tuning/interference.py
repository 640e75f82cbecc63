"""What happens to a job beside a search: its end, and what others change of it. Pure."""

from __future__ import annotations

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.wire import commands
from overlaptop.wire.commands import UNKNOWN

LOST_S = 10.0
"""Past LEASE_S the hub has undone what was changed."""


class Interference:
    """Looks at one job from its first Snapshot on."""

    def __init__(self, snapshot: Snapshot, search: str) -> None:
        """``search``: the id that the own commands carry."""
        self._search = search
        self._job = snapshot.job.job if snapshot.job is not None else ""
        self._since_ns = snapshot.at_ns
        self._pids: dict[int, int] = {}
        self._earlier = frozenset(view.id for view in snapshot.commands)
        """Commands that were there before."""

    def end_of_job(self, snapshot: Snapshot) -> str:
        """Why the job is not there any more, or cannot be reached; empty: it is."""
        if snapshot.job is None or snapshot.job.job != self._job:
            return "the job was replaced by another one"
        if snapshot.hub_state in (HubState.ENDED, HubState.TRACE):
            return "the job ended"
        for view in snapshot.ranks:
            if view.info is not None:
                if view.ended:
                    return f"rank {view.rank} ended"
                if self._pids.setdefault(view.rank, view.info.pid) != view.info.pid:
                    return f"rank {view.rank} was started again"
        silent = snapshot.hub_state is not HubState.LIVE
        if silent and snapshot.at_ns - max(snapshot.hub_since_ns, self._since_ns) > LOST_S * 1e9:
            return "the connection to the job broke: its hub goes back to the value before"
        return ""

    def change(self, snapshot: Snapshot) -> CommandView | None:
        """A change since then that is not the search's own, as soon as the ranks have agreed on it, or it
        is not known whether they have.
        """
        for view in snapshot.commands:
            if (
                view.name in commands.CHANGES
                and view.search != self._search
                and view.id not in self._earlier
                and view.state != FAILED
                and (view.step is not None or view.state == UNKNOWN)
            ):
                return view
        return None


def in_words(change: CommandView, what: str) -> str:
    """``somebody else changed the job: set accumulation 2 (ann)``. ``what``: was changed by it."""
    changed = "may have changed" if change.state == UNKNOWN else "changed"
    return f"somebody else {changed} {what}: {change.words} ({change.by})"
