"""Change a knob by keys: the selected knob, its new value, and the progress. No screen."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.report.knobs import short_name
from overlaptop.text import count, with_unit
from overlaptop.tui.model.knob_values import SCRIPT, number, parsed, smallest, stepped
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import CHANGED, UNKNOWN, make_restoring, make_setting
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

SETTLE_S = 1.5
"""Delay before a change is sent: faster keys add up to one change, and it can be cancelled until then."""
NEWS_S = 8.0
"""Time that a completed change stays on the screen."""
TAKE_BACK = "esc takes it back"
NOTHING = "nothing of this job can be changed"
_NO_JOB = {
    HubState.TRACE: "a trace is open: there is no job to change",
    HubState.ENDED: "the job is over: nothing can be changed",
}


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A change of a knob and its progress: one line on the screen. Unknown texts are empty."""

    knob: str
    old: str
    new: str
    """With its unit."""
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
        values = f"{self.old} → {self.new}".lstrip()
        return f"{short_name(self.knob)} {values}" if self.new else ""


@dataclass(frozen=True, slots=True)
class _WantedValue:
    knob: str
    value: int | None
    """None: the script's value."""
    old: str
    asked_s: float


class KnobEditor:
    """Takes keys, sends one command when they pause, and follows it.

    Methods take the newest snapshot, also while the screen is paused.
    """

    def __init__(self, session: Session, clock_s: Callable[[], float]) -> None:
        self._session, self._clock_s = session, clock_s
        self.own: dict[str, str] = {}
        """Ids of this dashboard's changes, with the old value."""
        self.change: KnobChange | None = None
        """The newest change from any dashboard, or why there is none."""
        self._change_s = -NEWS_S
        self._selected = ""
        self._wanted: _WantedValue | None = None
        self._sent: KnobChange | None = None
        """The newest change sent, until a snapshot has it."""
        self._before: tuple[str, Knob | None] = "", None
        """The newest change in progress, and its knob as ranks last sent it by then."""
        self._fault: KnobChange | None = None
        self._fault_when: tuple[object, ...] = ()
        """The circumstances of the fault. When they change, the fault disappears."""

    def forget(self) -> None:
        self._selected, self._wanted, self._sent, self._fault = "", None, None, None

    @property
    def change_is_news(self) -> bool:
        return self._clock_s() - self._change_s < NEWS_S

    def selected(self, snapshot: Snapshot) -> JobKnob | None:
        """Return the knob that keys change: the selected one, else the bucket size if it can be changed,
        else the first that can be changed. If none can, return the one whose reason is shown.
        """
        bucket = snapshot.knob(BUCKET_CAP_MB)
        if chosen := snapshot.knob(self._selected):
            return chosen
        if bucket is not None and not bucket.refusal:
            return bucket
        open_ones = (each for each in snapshot.knobs if not each.refusal)
        return next(open_ones, bucket or next(iter(snapshot.knobs), None))

    def select(self, name: str) -> None:
        self._selected = name

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

    def step(self, snapshot: Snapshot, direction: int) -> None:
        if (selected := self.editable(snapshot)) is not None:
            self._step(snapshot, selected.knob, direction)
        self._follow(snapshot)

    def type(self, snapshot: Snapshot, words: str) -> None:
        """Set a typed value. Raises ValueRefusedError, whose text is for the prompt."""
        sent = self._sent
        if (selected := self.editable(snapshot)) is not None:
            # No more keys follow, so it is sent at once.
            self._want(snapshot, selected.knob, parsed(selected.knob, words), self._clock_s() - SETTLE_S)
        if self._sent is sent:
            self.tick(snapshot)
        else:  # another knob's change was sent, which this snapshot does not have yet
            self._follow(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        if (selected := self.editable(snapshot)) is not None:
            self._want(snapshot, selected.knob, None, self._clock_s())
        self._follow(snapshot)

    def cancel(self) -> bool:
        """Cancel the pending change; return whether there was one."""
        wanted, self._wanted, self._fault = self._wanted, None, None
        return wanted is not None

    def tick(self, snapshot: Snapshot) -> None:
        """Send the pending value once keys pause and no other command is in progress."""
        wanted = self._wanted
        if wanted and self._clock_s() - wanted.asked_s >= SETTLE_S and _busy(snapshot) is None:
            self._send(snapshot, wanted)
        self._follow(snapshot)

    def _step(self, snapshot: Snapshot, knob: Knob, direction: int) -> None:
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
            self._want(snapshot, knob, value, self._clock_s())

    def _want(self, snapshot: Snapshot, knob: Knob, value: int | None, asked_s: float) -> None:
        wanted = self._wanted
        if wanted is not None and wanted.knob == knob.name:
            self._wanted = replace(wanted, value=value, asked_s=asked_s)
            return
        if wanted is not None:
            if _busy(snapshot) is not None:
                self._refuse(
                    snapshot, wanted.knob, f"the change of {wanted.knob} is still pending; {TAKE_BACK}"
                )
                return
            self._send(snapshot, wanted)
        at = self._expected(snapshot, knob)
        old = f"{at:g}" if at is not None else knob.value_text
        self._wanted = _WantedValue(knob.name, value, old, asked_s)

    def _send(self, snapshot: Snapshot, wanted: _WantedValue) -> None:
        pending, self._wanted = self._pending(snapshot, wanted), None
        held = snapshot.knob(wanted.knob)
        if held is None or held.refusal:
            why = held.refusal if held else f"the job has no {wanted.knob} any more"
            self._refuse(snapshot, wanted.knob, f"{wanted.knob} cannot be changed: {why}")
            return
        knob, value = held.knob, wanted.value
        if value is not None and value == self._expected(snapshot, knob):
            return  # keys returned to the present value
        try:
            command = make_restoring(knob) if value is None else make_setting(knob, value)
            fault = self._session.send(command)
        except (ValueError, WireError) as error:
            fault = str(error)
        if fault:
            self._refuse(snapshot, wanted.knob, f"not changed: {fault}")
        else:
            self.own[command.id] = pending.old
            self._before = command.id, knob
            self._sent = replace(pending, words="sent ...", command=command.id)

    def _expected(self, snapshot: Snapshot, knob: Knob) -> float | None:
        """Return the value after all requested changes; None: not known."""
        if self._wanted is not None and self._wanted.knob == knob.name:
            return number(knob.original_text) if self._wanted.value is None else self._wanted.value
        changes = [each for each in snapshot.changes if each.knob == knob.name]
        newest = next((each for each in reversed(changes) if each.state != FAILED), None)
        # Ranks send their knobs a moment after they report that the value has changed.
        ranks_lag = newest is not None and self._before[0] == newest.id and self._before[1] is knob
        if newest is not None and (not newest.done or (newest.new and ranks_lag)):
            target = knob.original_text if newest.value is None else str(newest.value)
            return number(newest.new or target)
        return knob.value if knob.value is not None else number(knob.value_text)

    def _refuse(self, snapshot: Snapshot, knob: str, words: str) -> None:
        self._fault_when = self._circumstances(snapshot)
        self._fault = KnobChange(knob, "", "", words, "failed")

    def _circumstances(self, snapshot: Snapshot) -> tuple[object, ...]:
        """Return the newest change and the obstacles: a fault is shown until any of them changes."""
        newest, selected = self._newest(snapshot), self.selected(snapshot)
        obstacles = _NO_JOB.get(snapshot.hub_state), selected and (selected.knob.name, selected.refusal)
        return (newest and newest.id, *obstacles)

    def _newest(self, snapshot: Snapshot) -> CommandView | None:
        """Return the newest change, except changes of other dashboards that were refused as busy."""
        changes = reversed(snapshot.changes)
        return next((each for each in changes if not each.busy or each.id in self.own), None)

    def _follow(self, snapshot: Snapshot) -> None:
        for each in snapshot.changes:
            if not each.done and (held := snapshot.knob(each.knob)) is not None:
                self._before = each.id, held.knob
        before, self.change = self.change, self._change(snapshot)
        after = self.change
        if not before or not after or (before.command, before.state) != (after.command, after.state):
            self._change_s = self._clock_s()

    def _change(self, snapshot: Snapshot) -> KnobChange | None:
        is_refused = self._fault is not None and self._circumstances(snapshot) == self._fault_when
        if self._wanted is not None:
            return self._fault if is_refused else self._pending(snapshot, self._wanted)
        if self._sent is not None:
            if all(each.id != self._sent.command for each in snapshot.commands):
                return self._sent
            self._sent = None
        if is_refused:
            return self._fault
        newest = self._newest(snapshot)
        return self._progress_of(snapshot, newest) if newest is not None else None

    def _pending(self, snapshot: Snapshot, wanted: _WantedValue) -> KnobChange:
        busy, new = _busy(snapshot), _new_value(snapshot, wanted.knob, wanted.value)
        words = f"waiting for: {busy.words}; {TAKE_BACK}" if busy is not None else TAKE_BACK
        return KnobChange(wanted.knob, wanted.old, new, words, "pending")

    def _progress_of(self, snapshot: Snapshot, view: CommandView) -> KnobChange:
        # Ranks report the old value once they have changed it.
        old = view.old or ("" if view.done else self.own.get(view.id, ""))
        new = _new_value(snapshot, view.knob, view.value, view.new)
        states = {FAILED: "failed", UNKNOWN: "failed", CHANGED: "changed"}
        state, by = states.get(view.state, "pending"), "" if view.id in self.own else view.by
        return KnobChange(view.knob, old, new, change_words(view), state, by, view.id)


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


def who_asked(view: CommandView, own: Collection[str]) -> str:
    """Return ``you`` if its id is in ``own``, this dashboard's; else the name in the command."""
    return "you" if view.id in own else view.by or "not said"


def _busy(snapshot: Snapshot) -> CommandView | None:
    """Return the command in progress, from any dashboard: a second one would be refused."""
    return next((each for each in snapshot.commands if not each.done), None)


def _new_value(snapshot: Snapshot, name: str, value: int | None, reported: str = "") -> str:
    """Return a new value with its unit: what ranks reported, else the requested one; None: the script's."""
    held = snapshot.knob(name)
    unit, original = (held.knob.unit, held.knob.original_text) if held is not None else ("", "")
    if reported or value is not None:
        return with_unit(reported or str(value), unit)
    return f"{with_unit(original, unit)} ({SCRIPT})" if original else f"the {SCRIPT}'s own"
