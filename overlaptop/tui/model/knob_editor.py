"""Change a knob by keys: the selected knob, its new value, and the progress. No screen."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.report.knobs import short_name
from overlaptop.text import count, with_unit
from overlaptop.tui.model.knob_values import SCRIPT, number, parsed, smallest, stepped
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import CHANGED, UNKNOWN, Command, make_restoring, make_setting
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

SETTLE_S = 1.5
"""Delay before a change is sent: faster keys add up to one change, and it can be cancelled until then."""
TAKE_BACK = "esc takes it back"
NOTHING = "nothing of this job can be changed"
_NO_JOB = {
    HubState.TRACE: "a trace is open: there is no job to change",
    HubState.ENDED: "the job is over: nothing can be changed",
}

Send = Callable[[Command], str]
"""`Session.send`."""


@dataclass(frozen=True, slots=True)
class KnobChange:
    """The newest change of a knob and its progress: one line on the screen."""

    knob: str
    """Name of the knob; empty if there is none."""
    old: str
    """The old value; empty if not known or not relevant."""
    new: str
    """The new value with its unit; empty if not relevant."""
    words: str
    """``esc takes it back``, ``changed at step 1,284``, ``not changed: rank 1 refused: ...``."""
    state: str
    """``pending``, ``changed`` or ``failed``."""
    by: str = ""
    """Who requested it, if not this dashboard."""
    command: str = ""
    """Id of its command; empty before it is sent."""

    @property
    def values_text(self) -> str:
        """Return such as ``bucket 25 MiB → 100 MiB``; empty if the change has no values."""
        if not self.new:
            return ""
        old = f"{self.old} → " if self.old else "→ "
        return f"{short_name(self.knob)} {old}{self.new}"


@dataclass(frozen=True, slots=True)
class _WantedValue:
    knob: str
    value: int | None
    """None: the script's value."""
    old: str
    asked_s: float


class KnobEditor:
    """Takes keys, sends one command when they pause, and follows it.

    Each method takes the newest snapshot, also while the screen is paused.
    """

    def __init__(self) -> None:
        self.own: set[str] = set()
        """Ids of this dashboard's changes."""
        self._selected = ""
        self._wanted: _WantedValue | None = None
        self._sent: KnobChange | None = None
        """The newest change sent, until a snapshot has it."""
        self._under_way = self._was = ""
        """The newest change seen in progress, and its knob's value at that time."""
        self._fault: KnobChange | None = None
        self._fault_when: tuple[object, ...] = ()
        """The circumstances of the fault. When they change, the fault disappears."""

    def forget(self) -> None:
        self._selected, self._wanted, self._sent, self._fault = "", None, None, None

    def selected(self, snapshot: Snapshot) -> JobKnob | None:
        """Return the knob that keys change: the selected one, else the bucket size if it can be changed,
        else the first that can be changed. If none can, return the one whose reason is shown.
        """
        knobs = {each.knob.name: each for each in snapshot.knobs}
        if self._selected in knobs:
            return knobs[self._selected]
        bucket = knobs.get(BUCKET_CAP_MB)
        if bucket is not None and not bucket.refusal:
            return bucket
        open_ones = (each for each in snapshot.knobs if not each.refusal)
        return next(open_ones, bucket or next(iter(snapshot.knobs), None))

    def select(self, name: str) -> None:
        self._selected = name

    def step(self, snapshot: Snapshot, direction: int, now_s: float) -> None:
        """Go to the next value up or down, from the pending one."""
        selected = self.editable(snapshot)
        if selected is None:
            return
        knob = selected.knob
        at = self._expected(snapshot, knob)
        if at is not None:
            value = stepped(knob, at, direction)
        elif knob.value_text and direction > 0:
            value = smallest(knob)
        else:
            what = "no number" if knob.value_text else "not known"
            self._refuse(snapshot, knob.name, f"{knob.name}: its present value is {what}; b takes another")
            return
        if value is None:
            end = "largest" if direction > 0 else "smallest"
            words = f"this is the {end} step of {knob.name}; b takes an exact value"
            self._refuse(snapshot, knob.name, words)
        else:
            self._want(snapshot, knob, value, now_s)

    def type(self, snapshot: Snapshot, words: str, now_s: float) -> None:
        """Set a typed value. Raises ValueRefusedError, whose text is for the prompt."""
        selected = self.editable(snapshot)
        if selected is not None:
            # No more keys follow, so it is sent at once.
            self._want(snapshot, selected.knob, parsed(selected.knob, words), now_s - SETTLE_S)

    def restore(self, snapshot: Snapshot, now_s: float) -> None:
        selected = self.editable(snapshot)
        if selected is not None:
            self._want(snapshot, selected.knob, None, now_s)

    def cancel(self) -> bool:
        """Cancel the pending change; return whether there was one."""
        waiting, self._wanted = self.waiting, None
        return waiting

    def tick(self, snapshot: Snapshot, now_s: float, send: Send) -> None:
        """Send the pending value once keys pause and no other person's command is in progress."""
        target = self._wanted
        if target is None or now_s - target.asked_s < SETTLE_S or self._busy(snapshot) is not None:
            return
        pending = self._pending(snapshot, target)
        self._wanted = None
        held = snapshot.knob(target.knob)
        if held is None or held.refusal:
            why = held.refusal if held else f"the job has no {target.knob} any more"
            self._refuse(snapshot, target.knob, f"{target.knob} cannot be changed: {why}")
            return
        knob, value = held.knob, target.value
        if value is not None and value == self._expected(snapshot, knob):
            return  # keys returned to the present value
        try:
            command = make_restoring(knob) if value is None else make_setting(knob, value)
            fault = send(command)
        except (ValueError, WireError) as error:
            fault = str(error)
        if fault:
            self._refuse(snapshot, target.knob, f"not changed: {fault}")
        else:
            self.own.add(command.id)
            self._sent = replace(pending, words="sent ...", command=command.id)

    @property
    def waiting(self) -> bool:
        return self._wanted is not None

    def change(self, snapshot: Snapshot) -> KnobChange | None:
        """Return the newest change, from here or elsewhere; None before any."""
        if self._wanted is not None:
            return self._pending(snapshot, self._wanted)
        if self._sent is not None:
            if all(each.id != self._sent.command for each in snapshot.commands):
                return self._sent
            self._sent = None
        newest = self._newest(snapshot)
        if self._fault is not None and self._circumstances(snapshot) == self._fault_when:
            return self._fault
        return self._progress_of(snapshot, newest) if newest is not None else None

    def editable(self, snapshot: Snapshot) -> JobKnob | None:
        """Return the selected knob if it can be changed; else None, and `change` has the reason."""
        self._fault = None
        selected = self.selected(snapshot)
        if snapshot.hub_state in _NO_JOB:
            self._refuse(snapshot, "", _NO_JOB[snapshot.hub_state])
        elif selected is None:
            self._refuse(snapshot, "", NOTHING)
        elif selected.refusal:
            name = selected.knob.name
            self._refuse(snapshot, name, f"{name} cannot be changed: {selected.refusal}")
        else:
            return selected
        return None

    def _expected(self, snapshot: Snapshot, knob: Knob) -> float | None:
        """Return the value after all requested changes; None: not known."""
        if self._wanted is not None and self._wanted.knob == knob.name:
            return number(knob.original_text) if self._wanted.value is None else self._wanted.value
        changes = [each for each in snapshot.changes if each.knob == knob.name]
        newest = next((each for each in reversed(changes) if each.state != FAILED), None)
        if newest is not None and (not newest.done or newest.new):
            # Ranks send their knobs a moment after they report that the value has changed.
            return number(newest.new or _target(newest, knob))
        return knob.value if knob.value is not None else number(knob.value_text)

    def _want(self, snapshot: Snapshot, knob: Knob, value: int | None, now_s: float) -> None:
        earlier = self._wanted
        self._fault = None
        if earlier is not None and earlier.knob == knob.name:
            self._wanted = replace(earlier, value=value, asked_s=now_s)
            return
        at = self._expected(snapshot, knob)
        self._wanted = _WantedValue(
            knob.name, value, f"{at:g}" if at is not None else knob.value_text, now_s
        )

    def _refuse(self, snapshot: Snapshot, knob: str, words: str) -> None:
        self._fault_when = self._circumstances(snapshot)
        self._fault = KnobChange(knob, "", "", words, "failed")

    def _circumstances(self, snapshot: Snapshot) -> tuple[object, ...]:
        """Return the newest change and the obstacle: a fault is shown until either changes."""
        newest, selected = self._newest(snapshot), self.selected(snapshot)
        return (newest and newest.id, selected and (selected.knob.name, selected.refusal))

    def _newest(self, snapshot: Snapshot) -> CommandView | None:
        """Return the newest change, except changes of other dashboards that were refused as busy."""
        changes = reversed(snapshot.changes)
        return next((each for each in changes if not each.busy or each.id in self.own), None)

    def _pending(self, snapshot: Snapshot, target: _WantedValue) -> KnobChange:
        knob = _knob(snapshot, target.knob)
        busy = self._busy(snapshot)
        return KnobChange(
            target.knob,
            target.old,
            _new_value(knob, target.value),
            f"waiting for: {busy.words}; {TAKE_BACK}" if busy is not None else TAKE_BACK,
            "pending",
        )

    def _progress_of(self, snapshot: Snapshot, view: CommandView) -> KnobChange:
        knob = _knob(snapshot, view.knob)
        unit = knob.unit if knob is not None else ""
        old = view.old or (self._value_before(view, knob) if knob is not None and not view.done else "")
        new = with_unit(view.new, unit) if view.new else _new_value(knob, view.value)
        states = {FAILED: "failed", UNKNOWN: "failed", CHANGED: "changed"}
        state, by = states.get(view.state, "pending"), "" if view.id in self.own else view.by
        return KnobChange(view.knob, old, new, change_words(view), state, by, view.id)

    def _value_before(self, view: CommandView, knob: Knob) -> str:
        """Return the old value of a change in progress: ranks may send the new value before they report the
        change.
        """
        if self._under_way != view.id:
            self._under_way, self._was = view.id, knob.value_text
        return self._was if self._was != _target(view, knob) else ""

    @staticmethod
    def _busy(snapshot: Snapshot) -> CommandView | None:
        """Return the command in progress, from any dashboard: a second one would be refused."""
        return next((each for each in snapshot.commands if not each.done), None)


def change_words(view: CommandView) -> str:
    """Return the progress of a change: ``agreed on step 1,284``."""
    if view.state == FAILED:
        return f"not changed: {view.reason}"
    if view.state == UNKNOWN:
        return f"not known whether it was changed: {view.reason}"
    if view.state in (CHANGED, "changing", "agreed"):
        at = "on" if view.state == "agreed" else "at"
        return view.state + (f" {at} step {count(view.step)}" if view.step is not None else "")
    return "ranks agree on a step ..." if view.state == "accepted" else "sent ..."


def _knob(snapshot: Snapshot, name: str) -> Knob | None:
    held = snapshot.knob(name)
    return held.knob if held is not None else None


def who_asked(view: CommandView, own: Collection[str]) -> str:
    """Return ``you`` for this dashboard alone; else the name in the command.

    ``own``: ids of this dashboard's commands.
    """
    return "you" if view.id in own else view.by or "not said"


def _target(view: CommandView, knob: Knob) -> str:
    return knob.original_text if view.value is None else str(view.value)


def _new_value(knob: Knob | None, value: int | None) -> str:
    unit = knob.unit if knob is not None else ""
    if value is not None:
        return with_unit(str(value), unit)
    original = knob.original_text if knob is not None else ""
    return f"{with_unit(original, unit)} ({SCRIPT})" if original else f"the {SCRIPT}'s own"
