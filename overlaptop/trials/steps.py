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
    disturbed: bool
    """By a capture, or by the switch from one value to another, on some rank."""
    in_trial: bool
    """On some rank."""


class StepReader:
    """Hands out each step once, in order, as soon as every rank that runs has finished it."""

    def __init__(self) -> None:
        self.next: int | None = None
        """The number of the next step that is handed out; None before the first look."""

    def read(self, snapshot: Snapshot) -> list[JobStep]:
        """The steps since the last look; the first look sets where they begin, and returns none."""
        views = [view for view in snapshot.ranks if view.last is not None and not view.ended]
        if not views:
            return []
        done = min(view.last.step for view in views if view.last is not None)
        if self.next is None or done + 1 < self.next:  # counted from 0 again: another process
            self.next = done + 1
            return []
        of_rank = [_since(view, self.next) for view in views]
        found = []
        for number in range(self.next, done + 1):
            seen = [steps[number] for steps in of_rank if number in steps]
            if seen:  # a connection that was broken for long has lost some
                step_ns = round(median(step.step_ns for step in seen))
                disturbed = any(step.captured or step.transitional for step in seen)
                found.append(JobStep(number, step_ns, disturbed, any(step.trial for step in seen)))
        self.next = done + 1
        return found


def _since(view: RankView, first: int) -> dict[int, StepTotals]:
    found = {}
    for step in reversed(view.history):
        if step.step < first:
            break
        found[step.step] = step
    return found
