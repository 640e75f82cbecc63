"""Changing a knob by keys: which one is selected, its new value, and how far that is. No screen in it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.knobs import JobKnob
from overlaptop.fleet.snapshot import LinkState, Snapshot
from overlaptop.text import count
from overlaptop.tui.tune.knob_values import (
    SCRIPT,
    parsed,
    present,
    short_name,
    smallest,
    stepped,
    with_unit,
)
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import make_restoring, make_setting
from overlaptop.wire.knobs import BUCKET_CAP_MB, Knob
from overlaptop.wire.messages import CHANGED, UNKNOWN, Command

SETTLE_S = 1.5
"""Keys that come faster than this add up to one change; so long it can be taken back before it is sent."""
TAKE_BACK = "esc takes it back"
NOTHING = "this job has told of nothing that can be changed"

Send = Callable[[Command], str]
"""Tells the job; returns why that cannot be, empty: it is on its way."""


@dataclass(frozen=True, slots=True)
class Change:
    """The newest change of a knob, as far as it is: one line on the screen."""

    knob: str
    """Its name; empty where there is none to name."""
    was: str
    """The value before; empty where that is not known, or nothing is to be said of it."""
    becomes: str
    """What it is to be, with its unit; empty where nothing is to be said of it."""
    words: str
    """``esc takes it back``, ``changed at step 1,284``, ``not changed: rank 1 refused: ...``."""
    state: str
    """``pending``, ``changed`` or ``failed``."""
    by: str = ""
    """Who asked for it, where that was not this dashboard."""
    command: str = ""
    """Its command's id; empty before it is sent."""


@dataclass(frozen=True, slots=True)
class _Target:
    knob: str
    value: int | None
    """None: what the script gave."""
    was: str
    asked_s: float


class Changing:
    """Takes keys, sends one command once they have come to rest, and knows what became of it.

    A snapshot is handed to each method: the newest, also while the picture is held still.
    """

    def __init__(self) -> None:
        self.own: set[str] = set()
        """Ids of the changes that this dashboard sent."""
        self._taken = ""
        self._target: _Target | None = None
        self._sent: Change | None = None
        """The newest one that was sent: it is in the next snapshot only."""
        self._under_way = self._was = ""
        """The newest one that was seen under way, and the value that its knob had then."""
        self._fault: Change | None = None
        self._fault_at: tuple[object, ...] = ()
        """How things stood when it was said: once they stand otherwise, it is no news any more."""

    def forget(self) -> None:
        """Another job."""
        self._taken, self._target, self._sent, self._fault = "", None, None, None

    def selected(self, snapshot: Snapshot) -> JobKnob | None:
        """The knob that keys change: the one that was taken, else the bucket size where it can be changed,
        else the first that can; where none can, the one whose reason is to be shown.
        """
        knobs = {each.knob.name: each for each in snapshot.knobs}
        if self._taken in knobs:
            return knobs[self._taken]
        bucket = knobs.get(BUCKET_CAP_MB)
        if bucket is not None and not bucket.refusal:
            return bucket
        open_ones = (each for each in snapshot.knobs if not each.refusal)
        return next(open_ones, bucket or next(iter(snapshot.knobs), None))

    def take(self, name: str) -> None:
        """From now on keys change this one."""
        self._taken = name

    def step(self, snapshot: Snapshot, direction: int, now_s: float) -> None:
        """The next value up or down, from where earlier keys led."""
        held = self.ready(snapshot)
        if held is None:
            return
        knob = held.knob
        at = self._heading(snapshot, knob)
        if at is not None:
            value = stepped(knob, at, direction)
        elif knob.value_text and direction > 0:
            value = smallest(knob)
        else:
            what = "no number" if knob.value_text else "not known"
            self._say(snapshot, knob.name, f"{knob.name}: its present value is {what}; b takes another")
            return
        if value is None:
            end = "largest" if direction > 0 else "smallest"
            self._say(snapshot, knob.name, f"this is the {end} step of {knob.name}; b takes an exact value")
            return
        self._aim(snapshot, knob, value, now_s)

    def type(self, snapshot: Snapshot, words: str, now_s: float) -> None:
        """What was typed at the prompt. Raises ValueRefusedError, whose text is for the prompt."""
        held = self.ready(snapshot)
        if held is not None:
            # Nothing more is typed: there is nothing to wait for.
            self._aim(snapshot, held.knob, parsed(held.knob, words), now_s - SETTLE_S)

    def restore(self, snapshot: Snapshot, now_s: float) -> None:
        """Back to what the script gave."""
        held = self.ready(snapshot)
        if held is not None:
            self._aim(snapshot, held.knob, None, now_s)

    def take_back(self) -> bool:
        """Do not send what was asked for; returns whether there was such a thing."""
        waiting, self._target = self.waiting, None
        return waiting

    def tick(self, snapshot: Snapshot, now_s: float, send: Send) -> None:
        """Send what is wanted, once keys have come to rest and no other person's command is under way."""
        target = self._target
        if target is None or now_s - target.asked_s < SETTLE_S or self._busy(snapshot) is not None:
            return
        pending = self._pending(snapshot, target)
        self._target = None
        held = next((each for each in snapshot.knobs if each.knob.name == target.knob), None)
        if held is None or held.refusal:
            why = held.refusal if held else f"the job has no {target.knob} any more"
            self._say(snapshot, target.knob, f"{target.knob} cannot be changed: {why}")
            return
        searched = snapshot.search is not None and snapshot.search.knob == target.knob
        at = self._heading(snapshot, held.knob)
        if target.value is not None and target.value == at and not searched:
            return  # keys led back to where it is; but where a search has led there, it shall stay so
        try:
            command = (
                make_restoring(held.knob) if target.value is None else make_setting(held.knob, target.value)
            )
            fault = send(command)
        except (ValueError, WireError) as error:
            fault = str(error)
        if fault:
            self._say(snapshot, target.knob, f"not changed: {fault}")
        else:
            self.own.add(command.id)
            self._sent = replace(pending, words="sent ...", command=command.id)

    @property
    def waiting(self) -> bool:
        """Whether there is something still to be sent."""
        return self._target is not None

    def change(self, snapshot: Snapshot) -> Change | None:
        """The newest change of a knob that a person asked for, here or elsewhere; None before any."""
        if self._target is not None:
            return self._pending(snapshot, self._target)
        if self._sent is not None:
            if all(each.id != self._sent.command for each in snapshot.commands):
                return self._sent
            self._sent = None
        newest = self._newest(snapshot)
        if self._fault is not None and self._standing(snapshot) == self._fault_at:
            return self._fault
        return self._followed(snapshot, newest) if newest is not None else None

    def newest(self, snapshot: Snapshot, own_searches: Collection[str]) -> Change | None:
        """As `change`; but a later one that a search made, also in going back, is told in its place.

        ``own_searches``: ids of the searches that were begun here.
        """
        told = self.change(snapshot)
        if self._target is not None or (told is not None and told in (self._sent, self._fault)):
            return told  # it is about a key that was pressed here
        views = (each for each in reversed(snapshot.commands) if each.knob and not each.busy)
        newest = next(views, None)
        if newest is None or not newest.search:
            return told
        return replace(self._followed(snapshot, newest), by=who_asked(newest, self.own, own_searches))

    def ready(self, snapshot: Snapshot) -> JobKnob | None:
        """The selected knob, if it can be changed; else None, and `change` says why not."""
        self._fault = None
        held = self.selected(snapshot)
        if snapshot.link is LinkState.TRACE:
            self._say(snapshot, "", "a trace is open: there is no job to change")
        elif snapshot.link is LinkState.ENDED:
            self._say(snapshot, "", "the job is over: nothing can be changed")
        elif held is None:
            self._say(snapshot, "", NOTHING)
        elif held.refusal:
            self._say(snapshot, held.knob.name, f"{held.knob.name} cannot be changed: {held.refusal}")
        else:
            return held
        return None

    def _heading(self, snapshot: Snapshot, knob: Knob) -> float | None:
        """The value that it will have once all that was asked here has been done; None: not known."""
        if self._target is not None and self._target.knob == knob.name:
            if self._target.value is not None:
                return self._target.value
            return _number(knob.original_text)
        changes = [each for each in snapshot.commands if each.knob == knob.name]
        newest = next((each for each in reversed(changes) if each.state != FAILED), None)
        if newest is not None and (not newest.done or newest.becomes):
            # Ranks say what the value is a moment after they say that it has changed.
            text = newest.becomes or (knob.original_text if newest.value is None else str(newest.value))
            return _number(text)
        return present(knob)

    def _aim(self, snapshot: Snapshot, knob: Knob, value: int | None, now_s: float) -> None:
        earlier = self._target
        self._fault = None
        if earlier is not None and earlier.knob == knob.name:
            self._target = replace(earlier, value=value, asked_s=now_s)
            return
        at = self._heading(snapshot, knob)
        self._target = _Target(knob.name, value, f"{at:g}" if at is not None else knob.value_text, now_s)

    def _say(self, snapshot: Snapshot, knob: str, words: str) -> None:
        self._fault_at = self._standing(snapshot)
        self._fault = Change(knob, "", "", words, "failed")

    def _standing(self, snapshot: Snapshot) -> tuple[object, ...]:
        """What makes a fault old when it changes: the newest change, and what is in the way of one."""
        newest, held = self._newest(snapshot), self.selected(snapshot)
        return (
            newest.id if newest is not None else "",
            held.knob.name if held is not None else "",
            held.refusal if held is not None else "",
        )

    def _newest(self, snapshot: Snapshot) -> CommandView | None:
        """Another dashboard's change that came in the way of one is not the news."""
        changes = [each for each in snapshot.commands if each.knob and not each.search]
        return next((each for each in reversed(changes) if not each.busy or each.id in self.own), None)

    def _pending(self, snapshot: Snapshot, target: _Target) -> Change:
        knob = next((each.knob for each in snapshot.knobs if each.knob.name == target.knob), None)
        busy = self._busy(snapshot)
        return Change(
            target.knob,
            target.was,
            _becomes(knob, target.value),
            f"waiting for: {busy.words}; {TAKE_BACK}" if busy is not None else TAKE_BACK,
            "pending",
        )

    def _followed(self, snapshot: Snapshot, view: CommandView) -> Change:
        knob = next((each.knob for each in snapshot.knobs if each.knob.name == view.knob), None)
        unit = knob.unit if knob is not None else ""
        was = view.was or (self._value_before(view, knob) if knob is not None and not view.done else "")
        becomes = with_unit(view.becomes, unit) if view.becomes else _becomes(knob, view.value)
        states = {FAILED: "failed", UNKNOWN: "failed", CHANGED: "changed"}
        state = states.get(view.state, "pending")
        return Change(
            view.knob,
            was,
            becomes,
            change_words(view),
            state,
            "" if view.id in self.own else view.by,
            view.id,
        )

    def _value_before(self, view: CommandView, knob: Knob) -> str:
        """Of a change under way: ranks may tell of the new value before they tell that it was changed."""
        if self._under_way != view.id:
            self._under_way, self._was = view.id, knob.value_text
        becomes = knob.original_text if view.value is None else str(view.value)
        return self._was if self._was != becomes else ""

    @staticmethod
    def _busy(snapshot: Snapshot) -> CommandView | None:
        """The command that is under way, whoever gave it: a second one would be turned away. Not those of a
        search, which come one after the other: the hub lets a person's go first.
        """
        return next((each for each in snapshot.commands if not each.done and not each.search), None)


def change_words(view: CommandView) -> str:
    """How far a change is: ``agreed on step 1,284``."""
    at = f" step {count(view.step)}" if view.step is not None else ""
    if view.state == FAILED:
        return f"not changed: {view.reason}"
    if view.state == UNKNOWN:
        return f"not known whether it was changed: {view.reason}"
    if view.state == CHANGED:
        return f"changed at{at}" if at else "changed"
    if view.state == "changing":
        return f"changing at{at}" if at else "changing"
    if view.state == "agreed":
        return f"agreed on{at}" if at else "agreed"
    return "ranks agree on a step ..." if view.state == "accepted" else "sent ..."


def who_asked(view: CommandView, own: Collection[str], own_searches: Collection[str]) -> str:
    """``you`` for this dashboard alone, whoever else sits at the same terminal; else who, in its words.

    ``own``: ids of the commands that were given here; ``own_searches``: of the searches.
    """
    if view.search:
        return "your search" if view.search in own_searches else f"search of {view.by or 'somebody'}"
    return "you" if view.id in own else view.by or "not said"


def knob_words(change: Change) -> str:
    """``bucket 25 MiB → 100 MiB``; empty where the change has no values to tell."""
    if not change.becomes:
        return ""
    was = f"{change.was} → " if change.was else "→ "
    return f"{short_name(change.knob)} {was}{change.becomes}"


def _becomes(knob: Knob | None, value: int | None) -> str:
    unit = knob.unit if knob is not None else ""
    if value is not None:
        return with_unit(str(value), unit)
    original = knob.original_text if knob is not None else ""
    return f"{with_unit(original, unit)} ({SCRIPT})" if original else f"the {SCRIPT}'s own"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
