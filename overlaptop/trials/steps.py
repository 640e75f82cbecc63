"""Reads a job's steps from overlapping snapshots, each step once, with the median over ranks. Pure."""

from dataclasses import dataclass
from statistics import median

from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.wire.messages import StepTotals


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step that all ranks have finished."""

    number: int
    step_ns: int
    """Median over the ranks."""
    disturbed: bool
    """A capture, or the switch between two values, disturbed it on some rank."""
    in_trial: bool
    """A trial was running on some rank."""


class StepReader:
    """Returns each step once, in order, as soon as every running rank has finished it."""

    def __init__(self) -> None:
        self.next: int | None = None
        """Number of the next step to return. None before the first read."""

    def read(self, snapshot: Snapshot) -> list[JobStep]:
        """Return the steps since the last read. The first read only sets the start, and returns none."""
        views = [view for view in snapshot.ranks if view.last is not None and not view.ended]
        if not views:
            return []
        done = min(view.last.step for view in views if view.last is not None)
        if self.next is None or done + 1 < self.next:  # another process counts from 0 again
            self.next = done + 1
            return []
        of_rank = [_since(view, self.next) for view in views]
        found = []
        for number in range(self.next, done + 1):
            seen = [steps[number] for steps in of_rank if number in steps]
            if seen:  # some were lost if the connection was broken for long
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
