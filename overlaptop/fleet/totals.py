"""The job's totals over all ranks, and the step in which the ranks are compared."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from statistics import median_low
from typing import NamedTuple

from overlaptop.fleet.snapshot import RankView, Totals, Window
from overlaptop.fleet.waits import SplitStep
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.timeline.breakdown import launch_bound
from overlaptop.wire.messages import OwnCost, StepTotals

HISTORY_STEPS = 600
"""Steps of a rank that are kept."""
WINDOW_NS = {Window.SECONDS: 20_000_000_000, Window.MINUTE: 60_000_000_000}
LEAST_STEPS = 3
"""So many where they are longer."""
LAST_STEPS = 10
"""Of Window.STEPS."""
STANDSTILL_NS, STANDSTILL_STEPS = 10_000_000_000, 5
"""A step that is longer than both, this and so many usual ones, is none in which the job went on."""
_IS_MEASURED = attrgetter("measured")
_NUMBER = attrgetter("step")
_WAITS = attrgetter(*(field.name for field in fields(WaitTimes)))
_LANES = attrgetter("step_ns", "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "stall_ns", "fused_ns")
_MOST_SUMMED = {Window.SECONDS: 2048, Window.STEPS: 2048, Window.MINUTE: 8192}
"""Steps of all ranks together. The first is summed ten times a second."""
_MOST_LOOKS, _MOST_READ = 64, 4096
"""For a step that all ranks know, before each is taken at its own newest; and steps read for it."""


def total(
    ranks: Sequence[RankView],
    dropped: int,
    window: Window = Window.STEP,
    split_steps: Sequence[SplitStep] = (),
) -> Totals:
    """Sum up ``ranks``, as `of_one_step` gives them, over the steps of the window; ``dropped`` is what was
    lost on the way here, ``split_steps`` those that may be in a window of several.

    Ranks that ended count only when all have, and those of nodes that are lost only while no other rank
    can be reached: the job goes on there or not at all, and a broken connection must not stop its figures.
    The window ends with the newest step of all ranks; lane figures are of its measured steps up to that of
    the ranks' rows. Where it has none, they are of that one.
    """
    counted = _counted(ranks)
    newest = [view.last.step for view in counted if view.last is not None]
    # Of a job that is over, what it came to: a rank that failed a step earlier holds nothing up.
    newest_step = (max if all(view.ended for view in counted) else min)(newest, default=None)
    numbers = {view.measured.step for view in counted if view.measured is not None}
    recent = _recent(counted, newest_step, window)

    means = [_RankMean.of(each.view, each.measured) for each in recent if each.measured]
    lanes_ns = zip(*(_LANES(step) for each in recent for step in each.measured), strict=True)
    known_ns = [[value for value in values if value is not None] for values in lanes_ns]
    steps_ns, computes_ns, comms_ns, hiddens_ns, exposeds_ns, stalls_ns, fuseds_ns = known_ns or ([],) * 7
    compute_ns, comm_ns, fused_ns = sum(computes_ns), sum(comms_ns), sum(fuseds_ns)
    leads_ns = [mean.launch_lead_ns for mean in means if mean.launch_lead_ns is not None]
    busy_ns, longer_ns = compute_ns + comm_ns + fused_ns, max(compute_ns, comm_ns) + fused_ns
    first_step = min((each.measured[-1].step for each in recent if each.measured), default=None)
    if window is Window.STEP:
        waits = [view.waits for view in counted if view.measured is not None]
        split = int(None not in waits)
    else:
        split_here = in_window(split_steps, first_step)
        split = len(split_here)
        waits = [each.waits.times.get(view.rank) for each in split_here for view in counted]
    return Totals(
        step=newest_step,
        step_ns=_mean(step.step_ns for each in recent for step in each.all),
        overlap=sum(hiddens_ns) / comm_ns if comm_ns else None,
        exposed_ns=_mean(exposeds_ns),
        fused_ns=_mean(fuseds_ns),
        stall_ns=_mean(stalls_ns),
        idle_ns=_mean(
            step.idle_ns
            for each in recent
            if each.view.info is not None and each.view.info.compute_exact
            for step in each.measured
        ),
        speedup=busy_ns / sum(steps_ns) if busy_ns and steps_ns else None,
        attainable=busy_ns / longer_ns if longer_ns else None,
        launch_lead_ns=min(leads_ns, default=None),
        launch_bound=tuple(mean.rank for mean in means if mean.launch_bound),
        dropped=dropped,
        ranks=len(means),
        measured_step=numbers.pop() if len(numbers) == 1 else None,
        waits=_mean_waits(waits),
        split_steps=split,
        own_cost=_middle([view.own_cost for view in counted if view.own_cost is not None]),
        window=window,
        steps=max((len(each.measured) for each in recent), default=0),
        first_step=first_step,
        cut=any(each.cut for each in recent),
        stood_still=max((each.stood_still for each in recent), default=0),
    )


class _Recent(NamedTuple):
    """A rank's steps of a window, newest first."""

    view: RankView
    all: Sequence[StepTotals]
    """Those that no command disturbed and in which the job did not stand still."""
    measured: Sequence[StepTotals]
    """Of them those that carry lane totals."""
    cut: bool = False
    """There are more than could be read."""
    stood_still: int = 0
    """Steps that were left out because the job stood still in them."""


class _RankMean(NamedTuple):
    """A rank's launch lead over a window."""

    rank: int
    launch_lead_ns: int | None
    launch_bound: bool

    @classmethod
    def of(cls, view: RankView, steps: Sequence[StepTotals]) -> _RankMean:
        lead_ns = _mean(step.launch_lead_ns for step in steps)
        if lead_ns is None:
            return cls(view.rank, None, launch_bound=False)
        step_ns, idle_ns = _mean(step.step_ns for step in steps), _mean(step.idle_ns for step in steps)
        return cls(view.rank, lead_ns, launch_bound(step_ns or 0, lead_ns, idle_ns) is True)


def _recent(counted: Sequence[RankView], newest: int | None, window: Window) -> list[_Recent]:
    """Each rank's steps of the window that ends with this step of all."""
    if window is Window.STEP:
        undisturbed = {step.rank: step for step in _alike(counted, lambda step: not step.disturbed)}
        return [
            _Recent(
                view,
                [undisturbed[view.rank]] if view.rank in undisturbed else [],
                [view.measured] if view.measured is not None else [],
            )
            for view in counted
        ]
    most = max(LEAST_STEPS, _MOST_SUMMED[window] // max(1, len(counted)))
    return [_recent_of(view, newest or 0, window, most) for view in counted]


def _recent_of(view: RankView, newest: int, window: Window, most: int) -> _Recent:
    end = bisect_right(view.history, newest, key=_NUMBER)
    since_ns = 0
    found: list[StepTotals] = []
    cut = len(view.history) == HISTORY_STEPS or end > most
    for step in reversed(view.history[max(0, end - most) : end]):
        if step.transitional and found:
            cut = False
            break  # what was before belongs to another value of the setting
        if step.disturbed:
            continue
        end_ns = step.start_ns + step.step_ns
        if not found:
            since_ns = end_ns - WINDOW_NS.get(window, end_ns)
        elif end_ns <= since_ns and len(found) >= LEAST_STEPS:
            cut = False
            break
        found.append(step)
    limit_ns = longest_going_ns([step.step_ns for step in found])
    going = [step for step in found if step.step_ns <= limit_ns]
    measured_step = view.measured.step if view.measured is not None else -1
    measured = [step for step in going if step.comm_ns is not None and step.step <= measured_step]
    if window is Window.STEPS:
        measured, going = measured[:LAST_STEPS], going[:LAST_STEPS]
        cut = cut and len(measured) < LAST_STEPS
    if not measured and view.measured is not None:
        measured = [view.measured]
    return _Recent(view, going, measured, cut, len(found) - len(going))


def in_window(split_steps: Sequence[SplitStep], first_step: int | None) -> Sequence[SplitStep]:
    """Those from this step on in which the job went on."""
    limit_ns = longest_going_ns([each.step_ns for each in split_steps])
    first = -1 if first_step is None else first_step
    return [each for each in split_steps if each.waits.step >= first and each.step_ns <= limit_ns]


def longest_going_ns(lengths_ns: Sequence[int]) -> float:
    """The length beyond which a step of a window is one in which the job stood still, given them all: one
    that hung, or a pause of minutes, would be all that a mean tells.
    """
    if max(lengths_ns, default=0) <= STANDSTILL_NS:
        return STANDSTILL_NS
    return max(STANDSTILL_NS, STANDSTILL_STEPS * median_low(lengths_ns))


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
    known = [_WAITS(each) for each in times if each is not None]
    if not known or len(known) < len(times):
        return None
    return WaitTimes(*(round(sum(each) / len(known)) for each in zip(*known, strict=True)))


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
    at = bisect_right(view.history, step, key=_NUMBER) - 1
    return view.history[at] if at >= 0 and view.history[at].step == step else None


def _mean(values_ns: Iterable[int | None]) -> int | None:
    known = [value for value in values_ns if value is not None]
    return round(sum(known) / len(known)) if known else None
