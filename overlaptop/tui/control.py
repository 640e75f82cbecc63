"""What this dashboard does to the job: changes of knobs by keys, and the search for the best value."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from overlaptop.fleet.snapshot import Snapshot
from overlaptop.tui.changing import Change, Changing
from overlaptop.tui.knob_values import ValueRefusedError, parsed_range
from overlaptop.tui.options import Session
from overlaptop.wire import change_log
from overlaptop.wire.endpoints import EndpointError

if TYPE_CHECKING:
    from overlaptop.advice.tuner import Tuner

NEWS_S = 8.0
"""So long a change that was made is told of."""


class Control:
    """Its `tick` is called at every reading of the session, with what was read."""

    def __init__(self, session: Session, clock_s: Callable[[], float]) -> None:
        self._session = session
        self._clock_s = clock_s
        self._job = session.job_key
        self.changing = Changing()
        self.tuner: Tuner | None = None
        """The newest search of this dashboard, also when it is over."""
        self.search_ids: set[str] = set()
        """Of all searches of this dashboard."""
        self._change: Change | None = None
        self._change_s = -NEWS_S

    @property
    def log_path(self) -> str:
        """The file in which every change is kept; empty where there is none."""
        try:
            return str(change_log.path())
        except EndpointError:
            return ""

    @property
    def searching(self) -> bool:
        """Whether a search of this dashboard goes on."""
        return self.tuner is not None and not self.tuner.over

    def tick(self, snapshot: Snapshot) -> None:
        """Send what is due."""
        if self._session.job_key != self._job:
            self._job = self._session.job_key
            self.changing.forget()
            self.tuner = None
        now_s = self._clock_s()
        self.changing.tick(snapshot, now_s, self._session.send)
        if self.tuner is not None:
            self.tuner.tick(snapshot)
        change = self.changing.change(snapshot)
        if change is None or self._change is None or (change.command, change.state) != (
            self._change.command, self._change.state,
        ):  # fmt: skip
            self._change_s = now_s
        self._change = change

    @property
    def change(self) -> Change | None:
        """The newest change of a knob."""
        return self._change

    @property
    def change_is_news(self) -> bool:
        """Whether that was made only just now."""
        return self._clock_s() - self._change_s < NEWS_S

    def step(self, snapshot: Snapshot, direction: int) -> None:
        """A key for the next value up or down."""
        self.changing.step(snapshot, direction, self._clock_s())
        self._change = self.changing.change(snapshot)

    def type(self, snapshot: Snapshot, words: str) -> None:
        """A value was typed. Raises ValueRefusedError."""
        self.changing.type(snapshot, words, self._clock_s())
        self.tick(snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Back to the script's own value."""
        self.changing.restore(snapshot, self._clock_s())
        self.tick(snapshot)

    def search(self, snapshot: Snapshot, words: str) -> None:
        """Begin to search for the best value of the knob in hand in the range that was typed.

        Raises ValueRefusedError, whose text is for the prompt.
        """
        held = self.changing.ready(snapshot)
        if held is None:
            return
        least, most = parsed_range(held.knob, words)
        if snapshot.search is not None:
            raise ValueRefusedError(f"{snapshot.search.by} searches already")
        # numpy takes 100 ms to import: not before it is needed.
        from overlaptop.advice.tuner import Tuner

        try:
            self.tuner = Tuner(self._session, held.knob, least, most, keep=True)
        except ValueError as error:
            raise ValueRefusedError(str(error)) from error
        self.search_ids.add(self.tuner.claim.id)

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

    @property
    def may_leave(self) -> bool:
        """Whether quitting leaves nothing to be undone."""
        return not self.searching
