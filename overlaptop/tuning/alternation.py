"""Goes back to the value that a knob had before a change, and again, to tell its effect from drift.

The new value stays in force for `STEPS` steps, then the one before, then the new one again. So whatever
stops it in between leaves the job with one of the two values that its user chose. It sends the changes as a
person does, one after the other, and stops where another change is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.text import plural, with_unit
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import CHANGED, Command
from overlaptop.wire.knobs import Knob

STEPS = 36
"""With each value: three windows of steps, as many as it takes to find a change by a twentieth."""
BESIDE = 3
"""And those that a change disturbs."""


class Alternation:
    """One. Call ``tick`` with each new Snapshot of the job, and show ``words``."""

    def __init__(self, change: CommandView, knob: Knob, earlier: Iterable[str]) -> None:
        """``change``: made, the newest one of `knob`. ``earlier``: the ids of all commands until now.

        Raises:
            ValueError: one line: the value before cannot be set.
        """
        back = _setting(knob, change.was)
        again = _setting(knob, change.becomes)
        self.over = False
        self.words = ""
        """What it does, or why it stopped; empty once it went back and again."""
        self.ids: set[str] = set()
        """Of the changes that it sent."""
        self.change = change.id
        """That it goes back from, as its command's id."""
        self._knob, self._earlier = knob, frozenset(earlier)
        self._values = [back, again]
        """Still to be set; None: what the script gave."""
        self._texts = [change.was, change.becomes]
        self._under_way: Command | None = None
        self._since = change.step or 0
        """The newest change's step."""

    def stop(self, why: str = "stopped") -> None:
        """Change nothing more: the job keeps the value that it has."""
        if not self.over:
            self.over, self.words = True, f"{why}: the job keeps the value that it has"

    def tick(self, snapshot: Snapshot, send: Callable[[Command], str]) -> None:
        """Have the job change where it is time. Never blocks. ``send``: as Session.send."""
        if self.over:
            return
        if snapshot.hub_state in (HubState.ENDED, HubState.TRACE):
            self.stop("the job ended")
        elif snapshot.hub_state is HubState.LIVE:
            self._follow(snapshot)
            if not self.over and self._under_way is None:
                self._go_on(snapshot, send)

    def _follow(self, snapshot: Snapshot) -> None:
        """What has become of the changes, one's own and others'."""
        others = (each for each in snapshot.commands if each.id not in self._earlier | self.ids)
        if any(each.name in commands.CHANGES and each.state != FAILED for each in others):
            self.stop("another change was made")
            return
        asked = self._under_way
        view = snapshot.command(asked.id) if asked is not None else None
        if view is None or not view.done:
            return
        self._under_way = None
        if view.state == CHANGED and view.step is not None:
            self._since = view.step
            self.over, self.words = not self._values, ""
        else:
            self.stop(f"not changed ({view.reason})")

    def _go_on(self, snapshot: Snapshot, send: Callable[[Command], str]) -> None:
        lasts = [view.last.step for view in snapshot.ranks if view.last is not None and not view.ended]
        to_go = self._since + BESIDE + STEPS - min(lasts, default=0)
        way = "back" if len(self._values) == 2 else "again"
        self.words = f"{way} to {self._text} " + (f"in {plural(to_go, 'step')}" if to_go > 0 else "...")
        if to_go > 0 or any(not each.done for each in snapshot.commands):
            return
        value = self._values.pop(0)
        try:
            made = (
                commands.make_restoring(self._knob)
                if value is None
                else commands.make_setting(self._knob, value)
            )
            fault = send(made)
        except (ValueError, WireError) as error:
            fault = str(error)
        if fault:
            self.stop(f"not changed ({fault})")
            return
        self._under_way = made
        self.ids.add(made.id)

    @property
    def _text(self) -> str:
        return with_unit(self._texts[-len(self._values)], self._knob.unit)


def _setting(knob: Knob, text: str) -> int | None:
    """A value as a change tells it, for a command; None: what the script gave."""
    if text == knob.original_text:
        return None
    if not text.isascii() or not text.removeprefix("-").isdigit():
        raise ValueError(f"{knob.name} cannot be set to {text or 'what it was'}: that is no whole number")
    return int(text)
