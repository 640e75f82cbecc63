"""The job's totals over all ranks, and the step in which the ranks are compared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, replace
from operator import attrgetter
from statistics import fmean

from overlaptop.fleet.snapshot import RankView, Totals
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.timeline.breakdown import launch_bound
from overlaptop.wire.messages import OwnCost, StepTotals

_IS_MEASURED = attrgetter("measured")
_MOST_LOOKS, _MOST_READ = 64, 4096
"""For a step that all ranks know, before each is taken at its own newest; and steps read for it."""


def total(ranks: Sequence[RankView], dropped: int) -> Totals:
    """Sum up ``ranks``, as `of_one_step` gives them; ``dropped`` is what was lost on the way here.

    Ranks that ended count only when all have, and those of nodes that are lost only while no other rank
    can be reached: the job goes on there or not at all, and a broken connection must not stop its figures.
    The step time is that of the newest step that no command disturbed on any rank; lane figures come from
    the newest measured step, which is older where only every n-th step is measured.
    """
    counted = _counted(ranks)
    newest = [view.last.step for view in counted if view.last is not None]
    measured = [view.measured for view in counted if view.measured is not None]
    numbers = {step.step for step in measured}

    compute_ns = sum(step.compute_ns or 0 for step in measured)
    comm_ns = sum(step.comm_ns or 0 for step in measured)
    hidden_ns = sum(step.hidden_ns or 0 for step in measured)
    step_ns = sum(step.step_ns for step in measured)
    leads_ns = [step.launch_lead_ns for step in measured if step.launch_lead_ns is not None]
    busy_ns, longer_ns = compute_ns + comm_ns, max(compute_ns, comm_ns)
    return Totals(
        # Of a job that is over, what it came to: a rank that failed a step earlier holds nothing up.
        step=(max if all(view.ended for view in counted) else min)(newest, default=None),
        step_ns=_mean(step.step_ns for step in _alike(counted, lambda step: not step.disturbed)),
        overlap=hidden_ns / comm_ns if comm_ns else None,
        exposed_ns=_mean(step.exposed_ns for step in measured),
        stall_ns=_mean(step.stall_ns for step in measured),
        idle_ns=_mean(
            view.measured.idle_ns
            for view in counted
            if view.measured is not None and view.info is not None and view.info.compute_exact
        ),
        speedup=busy_ns / step_ns if busy_ns and step_ns else None,
        attainable=busy_ns / longer_ns if longer_ns else None,
        launch_lead_ns=min(leads_ns, default=None),
        launch_bound=tuple(
            step.rank
            for step in measured
            if launch_bound(step.step_ns, step.launch_lead_ns, step.idle_ns) is True
        ),
        dropped=dropped,
        ranks=len(measured),
        measured_step=numbers.pop() if len(numbers) == 1 else None,
        waits=_mean_waits([view.waits for view in counted if view.measured is not None]),
        own_cost=_middle([view.own_cost for view in counted if view.own_cost is not None]),
    )


def of_one_step(ranks: Sequence[RankView], step: int | None = None) -> tuple[RankView, ...]:
    """The ranks, each ``measured`` in the same step: in this one, else in the newest that all know.

    A rank that does not know that step keeps its own newest.
    """
    if step is None:
        found = _alike(_counted(ranks), _IS_MEASURED)
        step = found[0].step if found else None
    if step is None:
        return tuple(ranks)
    return tuple(_in_step(view, step) for view in ranks)


def _mean_waits(times: Sequence[WaitTimes | None]) -> WaitTimes | None:
    known = [astuple(each) for each in times if each is not None]
    if not known or len(known) < len(times):
        return None
    return WaitTimes(*(round(fmean(each)) for each in zip(*known, strict=True)))


def _middle(costs: list[OwnCost]) -> OwnCost | None:
    return sorted(costs, key=lambda cost: cost.change)[len(costs) // 2] if costs else None


def _in_step(view: RankView, step: int) -> RankView:
    if view.measured is None or view.measured.step == step:
        return view
    known = step_of(view, step)
    if known is None or not known.measured:
        return view
    return replace(view, measured=known, waits=None)


def _counted(ranks: Sequence[RankView]) -> Sequence[RankView]:
    seen = [view for view in ranks if view.last is not None]
    running = [view for view in seen if not view.ended]
    return [view for view in running if not view.node_lost] or running or seen


def _alike(views: Sequence[RankView], fits: Callable[[StepTotals], bool]) -> list[StepTotals]:
    """The newest step that fits on all ranks of which any does, a rank each; where there is none, each
    rank's newest.
    """
    newest = [(view, step) for view in views if (step := _newest(view, fits)) is not None]
    wanted = min((step.step for _, step in newest), default=-1)
    for _ in range(max(1, min(_MOST_LOOKS, _MOST_READ // max(1, len(newest))))):
        found = [step if step.step == wanted else step_of(view, wanted) for view, step in newest]
        here = [step for step in found if step is not None and fits(step)]
        if len(here) == len(newest):
            return here
        wanted -= 1
    return [step for _, step in newest]


def _newest(view: RankView, fits: Callable[[StepTotals], bool]) -> StepTotals | None:
    if view.measured is not None and fits is _IS_MEASURED:
        return view.measured
    return next((step for step in reversed(view.history) if fits(step)), None)


def step_of(view: RankView, step: int) -> StepTotals | None:
    """The rank's step of that number; None where it is not known, or no more."""
    at = bisect_right(view.history, step, key=attrgetter("step")) - 1
    return view.history[at] if at >= 0 and view.history[at].step == step else None


def _mean(values_ns: Iterable[int | None]) -> int | None:
    known = [value for value in values_ns if value is not None]
    return round(fmean(known)) if known else None
