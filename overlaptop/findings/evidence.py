"""Evidence: what rules see of a job, live or from its traces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from overlaptop.fleet.snapshot import LinkState, RankView, Snapshot
from overlaptop.fleet.splitting import WINDOW_STEPS, window_of
from overlaptop.fleet.waits import SplitStep, WaitWindow
from overlaptop.timeline.arrivals import Collective
from overlaptop.wire.messages import StepDetail, StepTotals

FIRST_STEPS = 2
"""Of a running job: they compile, allocate and fill caches, and say nothing of the others."""
MIN_STEPS, MIN_TRACED_STEPS = 4, 3
"""Of fewer steps nothing is said; a trace is of few."""


@dataclass(frozen=True, slots=True)
class JobStep:
    """One measured step on all ranks that are known."""

    number: int
    totals: Mapping[int, StepTotals]
    """By rank; with lane totals, and no command disturbed the step on any rank."""
    details: Mapping[int, StepDetail]
    """By rank, of those whose timeline is here: in the last few steps while somebody looks, else none."""
    split: SplitStep | None
    """Who waited for whom in it; None where that is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What is known of a job's last steps; of a trace, of all of its steps."""

    ranks: Mapping[int, RankView]
    """By number, those of which something is known: their facts, samples, knobs and history."""
    steps: tuple[JobStep, ...]
    """Oldest first; empty where there are fewer than MIN_STEPS of them."""
    window: WaitWindow | None
    """Who waited for whom in these steps; None where nothing is split."""
    collectives: tuple[Collective, ...]
    """Of the newest split step, matched across ranks; of a trace, all."""
    world_size: int
    is_trace: bool

    @property
    def exposed_wait_ns(self) -> int:
        """What a rank waits in a step with nothing beside it, in the mean of the ranks that are not late;
        0 where it is not known. No late rank's cause can win more.
        """
        return self.window.exposed_wait_ns if self.window is not None else 0


def evidence_of(snapshot: Snapshot) -> Evidence:
    """All that a Snapshot says."""
    ranks = {view.rank: view for view in snapshot.ranks if view.info is not None}
    # Of a job that goes on, ranks that have ended say nothing of what is slow now.
    running = {rank: view for rank, view in ranks.items() if not view.ended} or ranks
    is_trace = snapshot.link is LinkState.TRACE
    steps = tuple(_steps(running.values(), snapshot.split_steps))
    if not is_trace:
        steps = tuple(step for step in steps if step.number >= FIRST_STEPS)[-WINDOW_STEPS:]
    least = MIN_TRACED_STEPS if is_trace else MIN_STEPS
    thin = len(steps) < least
    return Evidence(
        ranks=running,
        steps=() if thin else steps,
        window=None if thin or len(snapshot.split_steps) < least else window_of(snapshot.split_steps),
        collectives=snapshot.waits.collectives if snapshot.waits is not None else (),
        world_size=snapshot.job.world_size if snapshot.job is not None else len(ranks),
        is_trace=is_trace,
    )


def _steps(views: Iterable[RankView], split_steps: Iterable[SplitStep]) -> list[JobStep]:
    """The steps that all these ranks have measured, oldest first."""
    totals: dict[int, dict[int, StepTotals]] = {}
    details: dict[int, dict[int, StepDetail]] = {}
    disturbed: set[int] = set()
    ranks = 0
    for view in views:
        ranks += bool(view.history)
        for step in view.history:
            if step.disturbed:
                disturbed.add(step.step)
            if step.measured:
                totals.setdefault(step.step, {})[view.rank] = step
        for detail in view.details:
            details.setdefault(detail.step, {})[view.rank] = detail
    split = {each.waits.step: each for each in split_steps}
    numbers = sorted(
        number for number, of_ranks in totals.items() if len(of_ranks) == ranks and number not in disturbed
    )
    return [
        JobStep(number, totals[number], details.get(number, {}), split.get(number)) for number in numbers
    ]
