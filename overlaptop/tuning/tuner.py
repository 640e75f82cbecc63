"""Searches for a knob's best value on a running job: the state machine between a ValueSearch and the job.

It has the job change the knob, gathers the steps that belong to each value, and hands them to the search.
While the last steps of a window are measured, the ranks agree on the next change: the job goes on with the
old value until the agreed step, and these steps count. Left out are steps that a command disturbed, and the
first few after a change.

A person goes first: a change of the same knob by somebody else ends the search and stays. The search holds
a lease at the hub and renews it with each tick; where it is not renewed, the hub undoes the search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from statistics import median

from msgspec.structs import replace

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import HubState, Snapshot
from overlaptop.report.knobs import value_words
from overlaptop.text import with_unit
from overlaptop.tuning.changer import Change, Changer
from overlaptop.tuning.current_value import CurrentValue
from overlaptop.tuning.interference import Interference, in_words
from overlaptop.tuning.search import SearchOptions, ValueSearch
from overlaptop.tuning.space import Space, default_range, layout_of
from overlaptop.tuning.state import (
    MeasuredWindow,
    Result,
    SearchState,
    caveat,
    make_result,
    measured_points,
)
from overlaptop.tuning.steps import JobStep, StepReader
from overlaptop.wire import commands
from overlaptop.wire.commands import UNKNOWN
from overlaptop.wire.knobs import Knob

SETTLE_STEPS = 2
"""Left out after a change besides those that it disturbed: a GPU's CPU regains its lead, caches fill."""
WARM_UP_STEPS = 20
"""A job's first steps say too much of the value that it has then: they take longer."""
LEAST_WINDOW_STEPS = 6
"""A window that was left with fewer is measured again."""
LEASE_WAIT_S = 6.0
"""For the hub to grant the lease; and, at the end, to give it back."""


class _TunerPhase(Enum):
    MEASURING = "measuring"
    ENDING = "ending"
    """Nothing more is measured; the knob is to get its last value."""
    RELEASING = "releasing"
    """The lease is given back."""
    OVER = "over"


class Tuner:
    """One search. Call ``tick`` with each new Snapshot of the job; ``state`` is what to show."""

    def __init__(
        self,
        session: Session,
        knob: Knob,
        least: int | None = None,
        most: int | None = None,
        *,
        options: SearchOptions | None = None,
        keep: bool = False,
        make_search: Callable[[Space, int, SearchOptions], ValueSearch] = ValueSearch,
    ) -> None:
        """From ``least`` to ``most``, both included; None: as `default_range` has it. ``keep``:
        leave the job with the best value where that is better beyond noise. ``make_search``: what decides,
        from the values, the one before and the options.

        Raises:
            ValueError: one line: a range without values, a knob that cannot be changed or changed back.
        """
        usual = default_range(knob)
        self._least = usual[0] if least is None else least
        self._most = usual[1] if most is None else most
        if knob.refusal:
            raise ValueError(f"{knob.name} cannot be changed: {knob.refusal}")
        if knob.changes_work:
            raise ValueError(
                f"a step does another amount of work with another {knob.name}: the shortest is not the best"
            )
        Space.of(knob, self._least, self._most)
        self._session, self._knob = session, knob
        self._options, self._keep, self._make_search = options or SearchOptions(), keep, make_search
        self.lease = commands.make_search(knob)
        """The search as the hub and other dashboards know it."""
        self._changer = Changer(session, knob, self.lease.id)
        self._leased = self._released = False
        self._phase = _TunerPhase.MEASURING
        self._target: int | None = None
        """To be left behind; None: what the script gave."""
        self._steps = StepReader()
        self._search: ValueSearch | None = None
        self._current = CurrentValue(knob, self.lease.undo_value)
        self._window: list[JobStep] = []
        self._settle = 0
        self._windows: list[MeasuredWindow] = []
        self._interference: Interference | None = None
        self._leased_ns = self._searching_ns = self._at_ns = self._until_ns = 0
        self._why, self._failed = "", False
        self._result: Result | None = None
        self._left = ""
        """Which value the job has, once it is over."""
        self._doing = "waits for the job's next step"

    @property
    def over(self) -> bool:
        """Nothing more is to come; what was to be set is set, as far as that could be."""
        return self._phase is _TunerPhase.OVER

    def stop(self, why: str = "stopped") -> None:
        """Measure nothing more and go back to the value before; goes on until ``over``."""
        if self._phase is _TunerPhase.MEASURING or (self._phase is _TunerPhase.ENDING and self._keep):
            self._end(why, self.lease.undo_value)

    def tick(self, snapshot: Snapshot) -> None:
        """Look at the job, and have it do what comes next. Never blocks."""
        if self._phase is _TunerPhase.OVER or snapshot.job is None:
            return
        if self._interference is None:
            self._interference, self._leased_ns = Interference(snapshot, self.lease.id), snapshot.at_ns
        self._at_ns = snapshot.at_ns
        steps = self._steps.read(snapshot)
        if self._ends_by_itself(snapshot, self._interference):
            return
        why = ""
        if self._phase is not _TunerPhase.RELEASING:
            why = self._session.renew(self.lease)
        if snapshot.hub_state is not HubState.LIVE:
            self._doing = "waits: there is no connection to the job"
            self._take(steps)
            return
        if self._phase is not _TunerPhase.RELEASING:
            self._follow_lease(snapshot, why)
            self._changer.follow(snapshot)
        if self._phase is _TunerPhase.MEASURING:
            self._measure(snapshot, steps)
        elif self._phase is _TunerPhase.ENDING:
            self._take(steps)
            self._leave_behind(snapshot)
        if self._phase is _TunerPhase.RELEASING:
            self._release(snapshot)

    # What the job and others do

    def _ends_by_itself(self, snapshot: Snapshot, interference: Interference) -> bool:
        """End where the job has, or somebody has taken the knob; returns whether it is over."""
        why, failed, left = interference.end_of_job(snapshot), True, ""
        other = interference.change(snapshot)
        if not why and self._phase is not _TunerPhase.RELEASING:
            if other is not None and other.knob == self._knob.name:
                why, failed = in_words(other, "it"), False
                left = self._current.words_after(other.value, known=other.state != UNKNOWN)
            elif snapshot.ended_search == self.lease.id:
                why = (
                    "the job's hub has ended it, and goes back: it had not heard of this search for a while"
                )
                left = f"the job's hub sets it back to {self._current.before_text}"
        if why:
            self._break_off(why, left, failed=failed)
            return True
        if other is not None and self._phase is _TunerPhase.MEASURING:
            self._end(in_words(other, "the job"), self.lease.undo_value)
        return False

    def _follow_lease(self, snapshot: Snapshot, why: str) -> None:
        """``why`` the lease could not be renewed."""
        holder = snapshot.search
        self._leased = holder is not None and holder.id == self.lease.id
        if self._leased:
            self._leased_ns = snapshot.at_ns
        elif holder is not None:
            self._break_off(f"{holder.by} searches for the best {holder.knob} already")  # and sets it
        elif snapshot.at_ns - self._leased_ns > LEASE_WAIT_S * 1e9:
            # A hub that took the place of another one has to take it anew.
            self._break_off(why or "the job's hub has not taken the search", self._current.words)

    # Measuring

    def _measure(self, snapshot: Snapshot, steps: Sequence[JobStep]) -> None:
        if self._steps.next is None:
            return
        if self._search is None:
            self._searching_ns = snapshot.at_ns
            space = Space.of(self._knob, self._least, self._most, layout_of(self._knob, snapshot))
            self._search = self._make_search(space, self._current.before, self._options)
        search, changer = self._search, self._changer
        search.spend(len(steps))
        self._take(steps)
        if changer.why_not:
            self._end(
                f"{self._knob.name} cannot be changed: {changer.why_not}", self.lease.undo_value, True
            )
            return
        while (
            changer.under_way is None
            and self._current.value == search.next
            and search.enough(self._times())
        ):
            self._close_window()
        if search.over:
            found = search.best_value()
            keeps = self._keep and found is not None and found.better
            self._end("", search.best if keeps else self.lease.undo_value)
            return
        wanted = search.next
        if self._current.value == wanted:
            # Agreeing takes a while, in which the job goes on with this value.
            soon = len(self._window) + max(0, changer.lag_steps - 1)
            wanted = search.following if soon >= search.window_steps else None
        if wanted is not None and wanted != self._current.value and self._leased:
            changer.ask(wanted, snapshot.at_ns, self._steps.next)
        self._describe()

    def _take(self, steps: Sequence[JobStep]) -> None:
        """Steps have passed: those of the value in force belong to its window."""
        change = self._changer.under_way
        first = steps[0].number if steps else self._steps.next
        if change is not None and self._has_come(change, before=first):
            self._switch(change)  # reported late
        for step in steps:
            if change is not None and self._has_come(change, before=step.number + 1):
                self._switch(change)
            if step.disturbed:
                self._settle = SETTLE_STEPS
            elif self._settle:
                self._settle -= 1
            elif step.number >= WARM_UP_STEPS:
                self._window.append(step)
        if change is not None and change.begun and change.changed:
            self._changer.settle()
        if self._changer.half_done:
            self._current.lose()
            self._window = []

    @staticmethod
    def _has_come(change: Change, before: int | None) -> bool:
        """Whether the step of a change that has not begun yet lies before this one."""
        return not change.begun and change.step is not None and before is not None and change.step < before

    def _switch(self, change: Change) -> None:
        """The step of a change has come: what was measured until then is of the value before."""
        assert change.step is not None
        change.begun = True
        self._window = [step for step in self._window if step.number < change.step]
        search = self._search
        if (
            self._phase is _TunerPhase.MEASURING
            and search is not None
            and self._current.value == search.next
            and len(self._window) >= LEAST_WINDOW_STEPS
        ):
            self._close_window()
        self._current.switch(change.value)
        self._window = []
        self._settle = SETTLE_STEPS

    def _close_window(self) -> None:
        search = self._search
        assert search is not None
        assert search.next is not None
        exposed = [step.exposed_ns for step in self._window if step.exposed_ns is not None]
        self._windows.append(
            MeasuredWindow(
                search.next,
                search.round,
                self._window[0].number,
                tuple(step.step_ns for step in self._window),
                round(median(exposed)) if exposed else None,
            )
        )
        search.add(self._times())
        self._window = []

    def _times(self) -> list[float]:
        return [float(step.step_ns) for step in self._window]

    # Ending

    def _end(self, why: str, target: int | None, failed: bool = False) -> None:
        """Measure nothing more; leave ``target`` behind (None: what the script gave)."""
        self._why, self._failed, self._target = why, failed, target
        self._phase = _TunerPhase.ENDING
        self._changer.begin_anew()
        self._result = self._result or self._found()

    def _leave_behind(self, snapshot: Snapshot) -> None:
        undoes = self._target == self.lease.undo_value
        last = self._knob.value_text if undoes else str(self._target)
        self._doing = f"sets {self._knob.name} {'back ' * undoes}to {with_unit(last, self._knob.unit)}"
        changer = self._changer
        if changer.why_not:
            # The lease is not given back: when it expires, the hub tries once more by itself.
            self._break_off(
                f"{self._knob.name} was not set {'back ' * undoes}to {last}: {changer.why_not}",
                f"{self._current.words}; its hub tries once more to go back to {self._current.before_text}",
            )
        elif changer.under_way is None and (
            self._current.undone if undoes else self._current.value == self._target
        ):
            self._phase = _TunerPhase.RELEASING
            self._until_ns = snapshot.at_ns + round(LEASE_WAIT_S * 1e9)
        else:
            changer.ask(self._target, snapshot.at_ns, self._steps.next or 0)

    def _release(self, snapshot: Snapshot) -> None:
        if not self._released:
            self._released = not self._session.renew(replace(self.lease, over=True))
        held = snapshot.search is not None and snapshot.search.id == self.lease.id
        if (self._released and not held) or snapshot.at_ns > self._until_ns:
            self._phase = _TunerPhase.OVER
            self._doing = self._why or "done"
            self._left = self._current.words

    def _break_off(self, why: str, left: str = "", *, failed: bool = True) -> None:
        """There is nothing that this search could or should undo; ``left``: as ``SearchState.left``."""
        if self._phase is _TunerPhase.MEASURING:
            self._result = self._found()
        if self._phase is not _TunerPhase.RELEASING:
            self._why, self._failed = f"{self._why}; {why}".removeprefix("; "), failed or self._failed
        self._left = left
        self._phase = _TunerPhase.OVER
        self._doing = self._why or "done"

    def _found(self) -> Result | None:
        found = self._search.best_value() if self._search is not None else None
        return make_result(self._knob, found) if found is not None else None

    # What is shown

    @property
    def state(self) -> SearchState:
        """The search as it is now."""
        search = self._search
        measuring = self._phase is _TunerPhase.MEASURING
        to_go = search.steps_to_go if search is not None and measuring else None
        spent = search.spent_steps if search is not None else 0
        a_step_s = (self._at_ns - self._searching_ns) / 1e9 / spent if spent else None
        return SearchState(
            knob=self._knob,
            least=self._least,
            most=self._most,
            doing=self._doing,
            over=self.over,
            why=self._why,
            failed=self._failed,
            now=self._current.value if measuring else None,
            best=search.best if search is not None and self._windows else None,
            candidates=search.candidates if search is not None else 0,
            points=measured_points(search, self._windows) if search is not None else (),
            windows=tuple(self._windows),
            round=search.round + 1 if search is not None else 1,
            steps_spent=spent,
            steps_to_go=to_go,
            seconds_to_go=to_go * a_step_s if to_go is not None and a_step_s is not None else None,
            result=self._result,
            caveat=caveat(self._knob, search.best_value()) if search is not None else "",
            left=self._left,
            alike_from=search.space.alike_from if search is not None else None,
        )

    def _describe(self) -> None:
        search, change = self._search, self._changer.under_way
        assert search is not None
        if change is not None and (change.begun or self._current.value != search.next):
            wanted = (
                value_words(self._knob, change.value) if change.value is not None else "the script's own"
            )
            self._doing = f"changes to {wanted}" + (f" at step {change.step:,}" if change.step else "")
        elif self._changer.waits_for_others:
            self._doing = "waits: another command is under way"
        elif not self._leased:
            self._doing = "waits for the job's hub to take the search"
        elif self._current.value is not None:
            done = min(len(self._window), search.window_steps)
            self._doing = (
                f"round {search.round + 1}: measures {value_words(self._knob, self._current.value)}, "
                f"{done} of {search.window_steps} steps"
            )
