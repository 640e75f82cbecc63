"""What this dashboard does to the job: changes of knobs by keys, and the search for the best value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from overlaptop.fleet.session import Session
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import JobFolderError
from overlaptop.tui.tune.earlier_changes import EarlierChanges
from overlaptop.tui.tune.knob_editor import KnobChange, KnobEditor
from overlaptop.tui.tune.knob_values import ValueRefusedError, parsed_range
from overlaptop.tuning.alternation import Alternation
from overlaptop.wire.commands import CHANGED

if TYPE_CHECKING:
    from overlaptop.tuning.state import SearchState
    from overlaptop.tuning.tuner import Tuner

NEWS_S = 8.0
"""So long a change that was made is shown."""
_LEFT = "not finished: another job is shown here; the first one's hub goes back to the value before"


@dataclass(frozen=True, slots=True)
class Searched:
    """A search of this dashboard, as it is or as it was."""

    state: SearchState
    job: str
    """The key of the job that was searched."""
    script: str
    of: str = ""
    """Which job that was, in words, where it is not the one that is shown; else empty."""


class KnobControl:
    """Its `tick` is called at every reading of the session, with what was read."""

    def __init__(self, session: Session, clock_s: Callable[[], float]) -> None:
        self._session = session
        self._clock_s = clock_s
        self._job = session.job_key
        self.editor = KnobEditor()
        self.tuner: Tuner | None = None
        """The newest search of this dashboard, also when it is over."""
        self.search_ids: set[str] = set()
        """Of all searches of this dashboard."""
        self.alternation: Alternation | None = None
        """The newest one of this dashboard, also when it is over."""
        self.earlier_changes = EarlierChanges()
        self._script = ""
        """Of the job that was shown last."""
        self._left: Searched | None = None
        """The newest search, where it was of a job that is not shown any more."""
        self.change: KnobChange | None = None
        """The newest change of a knob that a person asked for."""
        self.newest_change: KnobChange | None = None
        """As `change`; but a later one that a search made stands in its place."""
        self._change_s = -NEWS_S

    @property
    def log_path(self) -> str:
        """The file in which every change is kept; empty where there is none."""
        try:
            return str(change_log.path())
        except JobFolderError:
            return ""

    @property
    def searching(self) -> bool:
        return self.tuner is not None and not self.tuner.over

    def tick(self, snapshot: Snapshot) -> None:
        if self._session.job_key != self._job:
            self._leave_the_search()
            self._job = self._session.job_key
            self.editor.forget()
            self.alternation = None
        if snapshot.job is not None:
            self._script = snapshot.job.script
        self.earlier_changes.see(snapshot)
        now_s = self._clock_s()
        self.editor.tick(snapshot, now_s, self._session.send)
        if self.tuner is not None:
            self.tuner.tick(snapshot)
        if self.alternation is not None:
            self.alternation.tick(snapshot, self._session.send)
            self.editor.own |= self.alternation.ids
        before = self.change
        self._follow(snapshot)
        now = self.change
        if now is None or before is None or (now.command, now.state) != (before.command, before.state):
            self._change_s = now_s

    def _follow(self, snapshot: Snapshot) -> None:
        self.change = self.editor.change(snapshot)
        self.newest_change = self.editor.newest(snapshot, self.search_ids)

    def _leave_the_search(self) -> None:
        """Another job is shown: what was found of the one before is kept, until the next search begins."""
        if self.tuner is None:
            return
        state = self.tuner.state
        if not self.tuner.over:
            state = replace(state, over=True, failed=True, now=None, why=_LEFT)
        self._left = Searched(state, self._job or "", self._script)
        self.tuner = None

    @property
    def searched(self) -> Searched | None:
        """The newest search of this dashboard, whichever job it was of; None: there was none."""
        if self.tuner is not None:
            return Searched(self.tuner.state, self._job or "", self._script)
        if self._left is None or self._left.job == self._job:
            return self._left
        script = PurePath(self._left.script).name
        which = f"an earlier run of {script}" if self._left.script == self._script else script
        return replace(self._left, of=f"of {which}, not of the job that is shown now")

    @property
    def change_is_news(self) -> bool:
        return self._clock_s() - self._change_s < NEWS_S

    def step(self, snapshot: Snapshot, direction: int) -> None:
        """A key for the next value up or down."""
        self.editor.step(snapshot, direction, self._clock_s())
        self._follow(snapshot)

    def type(self, snapshot: Snapshot, words: str) -> None:
        """A value was typed. Raises ValueRefusedError."""
        self.editor.type(snapshot, words, self._clock_s())
        self.tick(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        self.editor.restore(snapshot, self._clock_s())
        self.tick(snapshot)

    def search(self, snapshot: Snapshot, words: str) -> None:
        """Begin to search for the best value of the selected knob in the range that was typed.

        Raises ValueRefusedError, whose text is for the prompt.
        """
        held = self.editor.editable(snapshot)
        if held is None:
            return
        least, most = parsed_range(held.knob, words)
        if snapshot.search is not None:
            raise ValueRefusedError(f"{snapshot.search.by} searches already")
        # numpy takes 100 ms to import: not before it is needed.
        from overlaptop.tuning.tuner import Tuner

        try:
            self.tuner = Tuner(self._session, held.knob, least, most, keep=True)
        except ValueError as error:
            raise ValueRefusedError(str(error)) from error
        self.search_ids.add(self.tuner.lease.id)

    def alternate(self, snapshot: Snapshot) -> str:
        """Go back to the value before the newest change, and again; stop that where it goes on. Returns why
        not; empty: it begins, or has stopped.
        """
        if self.alternation is not None and not self.alternation.over:
            self.alternation.stop()
            return ""
        change = next((each for each in reversed(snapshot.commands) if each.state == CHANGED), None)
        if change is None or change.was == change.becomes or change.search or snapshot.search is not None:
            return "there is no change to go back from" if snapshot.search is None else "a search goes on"
        held = snapshot.knob(change.knob)
        if held is None or held.refusal:
            return f"{change.knob} cannot be changed: {held.refusal if held is not None else 'it is gone'}"
        try:
            self.alternation = Alternation(change, held.knob, (each.id for each in snapshot.commands))
        except ValueError as error:
            return str(error)
        self.tick(snapshot)
        return ""

    def alternation_of(self, command: str) -> str:
        """What the alternation of this change, or of which it is a part, does; empty: there is none."""
        if self.alternation is None or command not in {self.alternation.change, *self.alternation.ids}:
            return ""
        return self.alternation.words

    def who_searches(self, snapshot: Snapshot) -> str:
        """In a few words, for every screen; empty: nobody."""
        if self.searching:
            return "searching"
        search = snapshot.search
        if search is None or search.id in self.search_ids:
            return ""
        return f"search by {search.by.partition(',')[0]}"

    def stop_search(self) -> None:
        """End it and go back to the value before; that takes a moment."""
        if self.tuner is not None:
            self.tuner.stop()
