"""Evidence: what rules see of a job, live or from its traces. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import inf
from statistics import median

from overlaptop import text
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.split_waits import window_of
from overlaptop.fleet.waits import StepTransfer, StepWaits, WaitWindow
from overlaptop.fleet.window import EVIDENCE_STEPS, FIRST_STEPS, HISTORY_STEPS
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.messages import StepDetail, StepTotals

MIN_STEPS = 3
"""Of fewer measured steps nothing is said."""
COUNTED_STEPS = 64
"""Steps of which counters are compared."""
VAGUE_STEPS = 12
"""And of fewer of a running job no finding that names no cause."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """One measured step on all ranks that are known."""

    number: int
    totals: Mapping[int, StepTotals]
    """By rank; with lane totals, and no command disturbed the step on any rank."""
    details: Mapping[int, StepDetail]
    """By rank, of those whose timeline is here: in the last few steps while somebody looks, else none."""
    waits: StepWaits | None
    """Who waited for whom in it; None where that is not known."""

    @property
    def is_drawn(self) -> bool:
        """Whether the timelines of all ranks are here."""
        return self.details.keys() == self.totals.keys()


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What is known of a job since it changed; of a trace, of all of its steps."""

    ranks: Mapping[int, RankView]
    """By number, those of which something is known: their facts, samples, knobs and history."""
    steps: tuple[JobStep, ...]
    """Oldest first; empty where there are fewer than MIN_STEPS of them."""
    window: WaitWindow | None
    """Who waited for whom: the one of the first line; of a trace, all of its steps. None where nothing is
    split."""
    collectives: tuple[Collective, ...]
    """Of the newest split step, matched across ranks; of a trace, all."""
    world_size: int
    is_trace: bool
    transfers: tuple[StepTransfer, ...] = ()
    """What the job's transfers took in its steps, for minutes; of a trace, none."""
    counted: tuple[Mapping[int, StepTotals], ...] = ()
    """The newest steps, measured or not, by rank: their lengths and counters. Of a trace, none."""

    @property
    def step_ns(self) -> float:
        """The median of all ranks and steps, of which there is one."""
        return median(totals.step_ns for step in self.steps for totals in step.totals.values())

    @property
    def exposed_wait_ns(self) -> int:
        """What a rank waits in a step with nothing beside it, in the mean of the ranks that are not late;
        0 where it is not known.
        """
        return self.window.exposed_wait_ns if self.window is not None else 0

    @property
    def most_wait_ns(self) -> int:
        """At most: what is exposed and not split may be waiting, too."""
        unsplit_share = self.window.unsplit_share if self.window is not None else 0.0
        return self.exposed_wait_ns + round(unsplit_share * self.step_ns)

    @property
    def wait_in_words(self) -> str:
        """``15.6 ms``."""
        return text.duration(self.exposed_wait_ns)


def evidence_of(snapshot: Snapshot) -> Evidence:
    """All that a Snapshot says."""
    known = {view.rank: view for view in snapshot.ranks if view.info is not None}
    is_trace = snapshot.hub_state is HubState.TRACE
    first = 0 if is_trace else max(FIRST_STEPS, snapshot.first_step)
    steps = _steps(
        known.values(), snapshot.split_steps, first, HISTORY_STEPS if is_trace else EVIDENCE_STEPS
    )
    if steps:  # a rank that has ended since, or has come, is no part of what is slow now
        known = {rank: view for rank, view in known.items() if rank in steps[-1].totals}
        steps = [step for step in steps if step.totals.keys() == known.keys()]
    window = window_of(snapshot.split_steps, alone=True) if is_trace else snapshot.wait_window
    thin = len(steps) < MIN_STEPS
    return Evidence(
        ranks=known,
        steps=() if thin else tuple(steps),
        window=None if thin or len(snapshot.split_steps) < MIN_STEPS else window,
        collectives=snapshot.waits.collectives if snapshot.waits is not None else (),
        world_size=snapshot.job.world_size if snapshot.job is not None else len(known),
        is_trace=is_trace,
        transfers=snapshot.transfers,
        counted=() if is_trace else _counted(known.values(), first),
    )


def _counted(views: Collection[RankView], first: int) -> tuple[Mapping[int, StepTotals], ...]:
    """The newest steps from `first` on that all of these ranks have made, oldest first."""
    by_number: dict[int, dict[int, StepTotals]] = {}
    for view in views:
        for step in view.history[-COUNTED_STEPS:]:
            if step.step >= first and not step.disturbed:
                by_number.setdefault(step.step, {})[view.rank] = step
    return tuple(totals for _, totals in sorted(by_number.items()) if len(totals) == len(views))


def _steps(
    views: Collection[RankView], split_steps: Iterable[StepWaits], first: int, most: int
) -> list[JobStep]:
    """The steps from `first` on that all ranks have measured that had not ended when they began, oldest
    first; looked for among the newest `most` of each rank.
    """
    totals: dict[int, dict[int, StepTotals]] = {}
    details: dict[int, dict[int, StepDetail]] = {}
    disturbed: set[int] = set()
    for view in views:
        for step in _newest(view, first, most):
            if step.disturbed:
                disturbed.add(step.step)
            if step.measured:
                totals.setdefault(step.step, {})[view.rank] = step
        for detail in view.details:
            details.setdefault(detail.step, {})[view.rank] = detail
    ends_ns = {view.rank: view.end.at_ns if view.end is not None else inf for view in views if view.history}
    split = {each.step: each for each in split_steps}
    return [
        JobStep(number, of_ranks, details.get(number, {}), split.get(number))
        for number, of_ranks in sorted(totals.items())
        if number not in disturbed and _needed(of_ranks, ends_ns) <= of_ranks.keys()
    ]


def _newest(view: RankView, first: int, most: int) -> Iterable[StepTotals]:
    """From the newest on, until so many are measured."""
    measured = 0
    for step in chain(reversed(view.history), reversed(view.older)):
        if measured >= most or step.step < first:
            return
        yield step
        measured += step.measured


def _needed(totals: Mapping[int, StepTotals], ends_ns: Mapping[int, float]) -> set[int]:
    """The ranks that had not ended when this step began."""
    begun_ns = min(step.start_ns for step in totals.values())
    return {rank for rank, end_ns in ends_ns.items() if end_ns > begun_ns}
