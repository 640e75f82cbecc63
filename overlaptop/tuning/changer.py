"""Has a running job change one knob, and retries where that may help."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.wire import commands
from overlaptop.wire.commands import CHANGED, UNKNOWN, Command
from overlaptop.wire.knobs import Knob

AGAIN_NS = 1_000_000_000
"""Before a change that failed is asked for again."""
TRIES = 3
BUSY_S = 60.0
"""Somebody's capture takes no longer."""


@dataclass(slots=True)
class Change:
    """A change that was asked for."""

    command: Command
    value: int | None
    """None: what the script gave."""
    asked_before: int
    """The first step that had not been seen yet."""
    view: CommandView | None = None
    """How far it is, as of the newest Snapshot."""
    begun: bool = False
    """The agreed step has come."""

    @property
    def changed(self) -> bool:
        """Whether all ranks have reported so."""
        return self.view is not None and self.view.done and self.view.state == CHANGED

    @property
    def step(self) -> int | None:
        """The step agreed on."""
        known = self.view.step if self.view is not None else None
        return self.asked_before if known is None and self.changed else known


class Changer:
    """One change at a time. ``ask``, then ``follow`` with each Snapshot until ``under_way`` is None or
    ``changed``, then ``settle``.
    """

    def __init__(self, session: Session, knob: Knob, search: str) -> None:
        """``search``: the id that the commands carry."""
        self.under_way: Change | None = None
        self.why_not = ""
        """Why the change was given up; empty: it was not."""
        self.waits_for_others = False
        """Another command is under way in the job."""
        self.half_done = False
        """The last change failed after ranks had agreed on it, or nobody knows: some may have made it."""
        self._session, self._knob, self._search = session, knob, search
        self._lags: deque[int] = deque(maxlen=4)
        self._again_ns = 0
        self._tries = 0
        self._busy_since_ns = 0

    @property
    def lag_steps(self) -> int:
        """From asking to the agreed step there were at least so many lately; 0 before it is known."""
        return min(self._lags, default=0)

    def ask(self, value: int | None, now_ns: int, next_step: int) -> None:
        """Ask for it, unless it is too early to try again. None: what the script gave."""
        if self.under_way is not None or now_ns < self._again_ns:
            return
        if value is None:
            command = commands.make_restoring(self._knob, search=self._search)
        else:
            command = commands.make_setting(self._knob, value, search=self._search)
        if why := self._session.send(command):
            self._failed(why, now_ns)
        else:
            self.half_done = False
            self.under_way = Change(command, value, next_step)

    def follow(self, snapshot: Snapshot) -> None:
        """Update the change under way."""
        change = self.under_way
        if change is None or change.changed:
            return
        view = snapshot.command(change.command.id)
        if view is None:
            self.under_way = None
            self._failed("the change was lost on the way", snapshot.at_ns)
            return
        if view.step is not None and change.step is None:
            self._lags.append(view.step - change.asked_before)
        change.view = view
        if view.done and view.state == CHANGED:
            self._tries = self._busy_since_ns = 0
            self.waits_for_others = False
        elif view.state in (FAILED, UNKNOWN):
            self.under_way = None
            self.half_done = view.step is not None or view.state == UNKNOWN
            self.waits_for_others = view.busy
            if view.busy:
                self._again_ns = snapshot.at_ns + AGAIN_NS
                self._busy_since_ns = self._busy_since_ns or snapshot.at_ns
                if snapshot.at_ns - self._busy_since_ns > BUSY_S * 1e9:
                    self.why_not = view.reason
            elif any(rank.state == "refused" for rank in view.ranks):
                self.why_not = view.reason
            else:
                self._failed(view.reason, snapshot.at_ns)

    def settle(self) -> None:
        """The change was noted: another may be asked for."""
        self.under_way = None

    def begin_anew(self) -> None:
        """Forget what failed: something else is to be tried."""
        self.why_not = ""
        self._tries = self._busy_since_ns = self._again_ns = 0

    def _failed(self, why: str, now_ns: int) -> None:
        self._tries += 1
        self._again_ns = now_ns + AGAIN_NS
        if self._tries > TRIES:
            self.why_not = why
