"""Change a knob by keys: the selected knob, its new value, and the progress. No screen."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.report.knobs import allowed_words, short_name
from overlaptop.text import count, with_unit
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import CHANGED, UNKNOWN, make_restoring, make_setting
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob

SCRIPT = "script"  # Typed to return to the script's value
SETTLE_S = 1.5
"""Delay before a change is sent: faster keys add up to one change, and it can be cancelled until then."""
NEWS_S = 8.0  # Time that a completed change, or the reason for none, stays on the screen
TAKE_BACK = "esc takes it back"
NOTHING = "nothing of this job can be changed"
_SMALL_RANGE = 32
_LOWEST_VALUES = (1, 2, 5, 10, 25, 50, 100)  # Larger values double


class ValueRefusedError(ValueError):
    """Not a value of this knob; the message is one line."""


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A change of a knob and its progress: one line on the screen. Unknown texts are empty."""

    knob: str
    old: str
    new: str  # With its unit
    words: str  # ``esc takes it back``, ``changed at step 1,284``, ``not changed: rank 1 refused: ...``
    state: str  # ``pending``, ``changed`` or ``failed``
    by: str = ""  # Who requested it, if not this dashboard
    command: str = ""  # Id of its command; empty before it is sent

    @property
    def values_text(self) -> str:
        """Return such as ``bucket 25 MiB → 100 MiB``; empty if the change has no values."""
        values = f"{self.old} → {self.new}".lstrip()
        return f"{short_name(self.knob)} {values}" if self.new else ""


class WantedValue(NamedTuple):
    """A value that waits to be sent."""

    knob: str
    value: int | None  # None: the script's value
    old: str
    asked_s: float


class KnobEditor:
    """Takes keys, sends one command when they pause, and follows it."""

    def __init__(self, session: Session, latest: Snapshot, clock_s: Callable[[], float]) -> None:
        self._session, self._latest, self._clock_s = session, latest, clock_s
        self.own: dict[str, str] = {}  # Ids of this dashboard's changes, with the old value
        self.selected_name = ""  # The knob that the user selected; empty: none
        self.wanted: WantedValue | None = None
        self._sent: KnobChange | None = None  # Until the next snapshot, which has the command
        self._refusal: KnobChange | None = None
        self._refused_s = -inf
        self._newest, self._change_s = ("", ""), -inf
        """Command and state of the newest change, and when it came."""

    def forget(self) -> None:
        self.selected_name, self.wanted, self._refusal = "", None, None

    @property
    def change(self) -> KnobChange | None:
        """Return the pending change, else the newest from any dashboard; for a while why there is none."""
        if self._refusal is not None and self._clock_s() - self._refused_s < NEWS_S:
            return self._refusal
        if (wanted := self.wanted) is not None:
            words = f"waiting for: {self._busy.words}; {TAKE_BACK}" if self._busy is not None else TAKE_BACK
            new = self._new_value(wanted.knob, wanted.value)
            return KnobChange(wanted.knob, wanted.old, new, words, "pending")
        # Changes of other dashboards that were refused as busy are no news.
        changes = (each for each in reversed(self._latest.changes) if not each.busy or each.id in self.own)
        newest = next(changes, None)
        return self._sent or (self._progress_of(newest) if newest is not None else None)

    @property
    def change_is_news(self) -> bool:
        return self._clock_s() - self._change_s < NEWS_S

    @property
    def selected(self) -> JobKnob | None:
        """Return the knob that keys change: the selected one, else the bucket size if it can be changed,
        else the first that can be changed. If none can, return the one whose reason is shown.
        """
        return self._latest.knob(self.selected_name) or min(
            self._latest.knobs,
            key=lambda each: (bool(each.refusal), each.knob.name != BUCKET_CAP_MB),
            default=None,
        )

    def editable(self) -> JobKnob | None:
        """Return the selected knob if it can be changed; else None, and `change` has the reason."""
        self._refusal, selected = None, self.selected
        if self._latest.hub_state is HubState.ENDED:
            self._refuse("", "the job is over: nothing can be changed")
        elif selected is None:
            self._refuse("", NOTHING)
        elif selected.refusal:
            self._refuse(selected.knob.name, f"{selected.knob.name} cannot be changed: {selected.refusal}")
        else:
            return selected
        return None

    def step(self, direction: int) -> None:
        """Want the next value up (1) or down (-1)."""
        if (selected := self.editable()) is None:
            return
        knob = selected.knob
        at = self._expected(knob)
        if at is not None:
            value = stepped(knob, at, direction)
        elif knob.value_text and direction > 0:
            value = min(knob.choices) if knob.choices else knob.least
        else:
            what = "no number" if knob.value_text else "not known"
            self._refuse(knob.name, f"{knob.name}: its present value is {what}; b takes another")
            return
        if value is None:
            end = "largest" if direction > 0 else "smallest"
            self._refuse(knob.name, f"this is the {end} step of {knob.name}; b takes an exact value")
        else:
            self._want(knob, value)

    def type(self, words: str) -> None:
        """Want a typed value, at once. Raises ValueRefusedError, whose text is for the prompt."""
        if (selected := self.editable()) is not None:
            self._want(selected.knob, parsed(selected.knob, words), settled=True)

    def restore(self) -> None:
        if (selected := self.editable()) is not None:
            self._want(selected.knob, None)

    def cancel(self) -> bool:
        """Cancel the pending change; return whether there was one."""
        wanted, self.wanted, self._refusal = self.wanted, None, None
        return wanted is not None

    def tick(self, snapshot: Snapshot) -> None:
        """Send the pending value once keys pause and no other command is in progress."""
        self._latest, self._sent, wanted = snapshot, None, self.wanted
        if wanted and self._clock_s() - wanted.asked_s >= SETTLE_S and self._busy is None:
            self._send(wanted)
        change = self.change
        if change is not None and change is not self._refusal:
            newest = change.command, change.state
            if newest != self._newest:
                self._newest, self._change_s = newest, self._clock_s()

    def _want(self, knob: Knob, value: int | None, *, settled: bool = False) -> None:
        """``settled``: no more keys follow."""
        wanted, asked_s = self.wanted, self._clock_s() - SETTLE_S * settled
        if wanted is None:
            at = self._expected(knob)
            old = f"{at:g}" if at is not None else knob.value_text
            self.wanted = WantedValue(knob.name, value, old, asked_s)
        elif wanted.knob == knob.name:
            self.wanted = wanted._replace(value=value, asked_s=asked_s)
        else:
            self._refuse(wanted.knob, f"the change of {wanted.knob} is still pending; {TAKE_BACK}")

    def _send(self, wanted: WantedValue) -> None:
        held, value = self._latest.knob(wanted.knob), wanted.value
        self.wanted, self._refusal = None, None
        if held is None or held.refusal:
            why = held.refusal if held else f"the job has no {wanted.knob} any more"
            self._refuse(wanted.knob, f"{wanted.knob} cannot be changed: {why}")
            return
        if value is not None and value == self._expected(held.knob):
            return  # keys returned to the present value
        try:
            command = make_restoring(held.knob) if value is None else make_setting(held.knob, value)
            fault = self._session.send(command)
        except (ValueError, WireError) as error:
            fault = str(error)
        if fault:
            self._refuse(wanted.knob, f"not changed: {fault}")
        else:
            self.own[command.id] = wanted.old
            new = self._new_value(wanted.knob, value)
            self._sent = KnobChange(wanted.knob, wanted.old, new, "sent ...", "pending", command=command.id)

    @property
    def _busy(self) -> CommandView | None:
        """Return the command in progress, from any dashboard: a second one would be refused."""
        return next((each for each in self._latest.commands if not each.done), None)

    def _expected(self, knob: Knob) -> float | None:
        """Return the value after all requested changes; None: not known."""
        if self.wanted is not None and self.wanted.knob == knob.name:
            return _number(knob.original_text) if self.wanted.value is None else self.wanted.value
        changes = [each for each in self._latest.changes if each.knob == knob.name]
        newest = next((each for each in reversed(changes) if each.state != FAILED), None)
        # Ranks send their knobs a moment after they report that the value has changed.
        if newest and (not newest.done or (newest.state == CHANGED and newest.old == knob.value_text)):
            target = knob.original_text if newest.value is None else str(newest.value)
            return _number(newest.new or target)
        return knob.value if knob.value is not None else _number(knob.value_text)

    def _refuse(self, knob: str, words: str) -> None:
        self._refusal, self._refused_s = KnobChange(knob, "", "", words, "failed"), self._clock_s()

    def _progress_of(self, view: CommandView) -> KnobChange:
        # Ranks report the old value once they have changed it.
        old = view.old or ("" if view.done else self.own.get(view.id, ""))
        new = self._new_value(view.knob, view.value, view.new)
        states = {FAILED: "failed", UNKNOWN: "failed", CHANGED: "changed"}
        state, by = states.get(view.state, "pending"), "" if view.id in self.own else view.by
        return KnobChange(view.knob, old, new, change_words(view), state, by, view.id)

    def _new_value(self, name: str, value: int | None, reported: str = "") -> str:
        """Return the reported value, else the requested one, with its unit; None: the script's."""
        held = self._latest.knob(name)
        unit, original = (held.knob.unit, held.knob.original_text) if held is not None else ("", "")
        if reported or value is not None:
            return with_unit(reported or str(value), unit)
        return f"{with_unit(original, unit)} ({SCRIPT})" if original else f"the {SCRIPT}'s own"


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


def stepped(knob: Knob, at: float, direction: int) -> int | None:
    """Return the next value up (1) or down (-1) from ``at``; None at the end.

    Choices in their order; a small range one by one; else 1 2 5 10 25 50 100 200 400 ... within bounds.
    """
    if knob.choices and at in knob.choices:
        index = knob.choices.index(int(at)) + direction
        return knob.choices[index] if 0 <= index < len(knob.choices) else None
    beyond = [value for value in _values(knob) if (value > at if direction > 0 else value < at)]
    return (min(beyond) if direction > 0 else max(beyond)) if beyond else None


def parsed(knob: Knob, words: str) -> int | None:
    """Parse a typed value; None for the script's own. Raises ValueRefusedError."""
    typed = words.strip().lower().removesuffix(knob.unit.lower()).strip()
    if typed == SCRIPT:
        return None
    try:
        value = int(typed)
    except ValueError:
        raise ValueRefusedError(f"type a whole number, {allowed_words(knob)}; or: {SCRIPT}") from None
    if fault := knob.fault(value):
        raise ValueRefusedError(fault)
    return value


def _values(knob: Knob) -> list[int]:
    if knob.choices:
        return list(knob.choices)
    if knob.most - knob.least <= _SMALL_RANGE:
        return list(range(knob.least, knob.most + 1))
    values = list(_LOWEST_VALUES)
    while values[-1] < max(abs(knob.least), abs(knob.most)):
        values.append(2 * values[-1])
    both = {0, *values, *(-value for value in values)}
    return [value for value in both if knob.least <= value <= knob.most]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
