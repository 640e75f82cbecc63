"""A job's steps one by one, each once, from snapshots that overlap; median over ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.wire.messages import StepTotals


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step that all ranks have finished."""

    number: int
    step_ns: int
    """The median over the ranks."""
    exposed_ns: int | None
    """Likewise, of the ranks that measured it; None: none did."""
    disturbed: bool
    """On some rank."""


class StepReader:
    """Hands out each step once, in order, as soon as every rank that runs has finished it."""

    def __init__(self) -> None:
        self._next: int | None = None

    @property
    def next(self) -> int | None:
        """The number of the next step that is handed out; None before the first look."""
        return self._next

    def read(self, snapshot: Snapshot) -> list[JobStep]:
        """The steps since the last look; the first look sets where they begin, and returns none."""
        views = [view for view in snapshot.ranks if view.last is not None and not view.ended]
        if not views:
            return []
        done = min(view.last.step for view in views if view.last is not None)
        if self._next is None or done + 1 < self._next:  # counted from 0 again: another process
            self._next = done + 1
            return []
        of_rank = [_since(view, self._next) for view in views]
        found = []
        for number in range(self._next, done + 1):
            seen = [steps[number] for steps in of_rank if number in steps]
            if seen:  # a line that was broken for long has lost some
                found.append(_together(number, seen))
        self._next = done + 1
        return found


def _since(view: RankView, first: int) -> dict[int, StepTotals]:
    found = {}
    for step in reversed(view.history):
        if step.step < first:
            break
        found[step.step] = step
    return found


def _together(number: int, seen: list[StepTotals]) -> JobStep:
    exposed = [step.exposed_ns for step in seen if step.exposed_ns is not None]
    return JobStep(
        number,
        round(median(step.step_ns for step in seen)),
        round(median(exposed)) if exposed else None,
        any(step.disturbed for step in seen),
    )
