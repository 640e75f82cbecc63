"""The job's totals over all ranks, and the common step at which ranks are compared."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from msgspec import structs

from overlaptop.fleet.snapshot import RankView, Totals, Window
from overlaptop.fleet.waits import StepWaits
from overlaptop.fleet.window import WindowSteps, in_window, steps_of
from overlaptop.timeline import ratios
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.timeline.averages import mean_of_known
from overlaptop.timeline.overlap import launch_bound
from overlaptop.wire.messages import OwnCost, StepTotals

_IS_MEASURED = attrgetter("measured")
_NUMBER = attrgetter("step")
WAITS = attrgetter(*(field.name for field in fields(WaitTimes)))
_MOST_LOOKS, _MOST_READ = 64, 4096
"""Steps looked at for one that all ranks know, and steps read, before each rank uses its newest."""


def total(
    ranks: Sequence[RankView],
    dropped: int,
    window: Window = Window.STEP,
    step_waits: Sequence[StepWaits] = (),
    since: int = 0,
) -> Totals:
    """Sum up ``ranks``, as returned by `of_one_step`, over the steps of the window.

    ``dropped``: messages lost on the way here. ``step_waits``: breakdowns available to windows of several
    steps. ``since``: first step after the job's last change; such a window contains no earlier step.

    Ended ranks count only once all have ended. Ranks of lost nodes count only while no other rank can be
    reached: if others can, their figures must go on. The window ends with the newest step of all ranks.
    Lane figures cover the steps in it that all these ranks have measured, up to the step of their rows. If
    there are no such steps, each rank uses its own.
    """
    counted = counted_ranks(ranks)
    newest = [view.last.step for view in counted if view.last is not None]
    # In a finished job, a rank that failed one step earlier must not hold the figures back.
    newest_step = (max if all(view.ended for view in counted) else min)(newest, default=None)
    numbers = {view.measured.step for view in counted if view.measured is not None}
    steps = _window(counted, newest_step, window, since)

    sums = [_RankFigures.of(each) for each in steps if each.measured]
    exact = {view.rank for view in counted if view.info is not None and view.info.compute_exact}

    def all_ns(figure: str, of: Callable[[_RankFigures], bool] = lambda _rank: True) -> list[int]:
        return list(chain.from_iterable(getattr(each, figure) for each in sums if of(each)))

    compute_ns, comm_ns, fused_ns = (sum(all_ns(figure)) for figure in ("compute", "comm", "fused"))
    first_step = min((each.measured[0].step for each in steps if each.measured), default=None)
    if window is Window.STEP:
        waits = [view.waits for view in counted if view.measured is not None]
        split = int(None not in waits)
    else:
        split_here = in_window(step_waits, first_step)
        split = len(split_here)
        waits = [each.times.get(view.rank) for each in split_here for view in counted]
    leads_ns = [lead_ns for each in sums if (lead_ns := mean_of_known(each.launch_lead)) is not None]
    return Totals(
        step=newest_step,
        step_ns=mean_of_known(list(chain.from_iterable(each.lengths_ns for each in steps))),
        overlap=ratios.overlap(sum(all_ns("hidden")), comm_ns),
        exposed_ns=mean_of_known(all_ns("exposed")),
        measured_ns=mean_of_known(all_ns("step")),
        fused_ns=mean_of_known(all_ns("fused")),
        stall_ns=mean_of_known(all_ns("stall")),
        idle_ns=mean_of_known(all_ns("idle", lambda each: each.rank in exact)),
        speedup=ratios.speedup(compute_ns, comm_ns, fused_ns, sum(all_ns("step"))),
        attainable=ratios.attainable(compute_ns, comm_ns, fused_ns),
        launch_lead_ns=min(leads_ns, default=None),
        launch_bound=tuple(each.rank for each in sums if each.launch_bound),
        dropped=dropped,
        ranks=len(sums),
        measured_step=numbers.pop() if len(numbers) == 1 else None,
        waits=_mean_waits(waits),
        step_waits=split,
        own_cost=middle_cost(counted),
        window=window,
        steps=max((len(each.measured) for each in steps), default=0),
        first_step=first_step,
        cut=any(each.cut for each in steps),
        paused_steps=max((each.paused_steps for each in steps), default=0),
    )


class _RankFigures(NamedTuple):
    """Figures of a rank's measured steps in a window: the values of each, in ns."""

    rank: int
    step: Sequence[int]
    compute: Sequence[int]
    comm: Sequence[int]
    hidden: Sequence[int]
    exposed: Sequence[int]
    stall: Sequence[int]
    fused: Sequence[int]
    idle: Sequence[int]
    launch_lead: Sequence[int]
    host: Sequence[int]

    @classmethod
    def of(cls, steps: WindowSteps) -> "_RankFigures":
        columns = zip(*map(_FIGURES, steps.measured), strict=True)
        known = [
            [ns for ns in column if ns is not None] if None in column else column for column in columns
        ]
        return cls(steps.view.rank, *known)

    @property
    def launch_bound(self) -> bool:
        means = map(mean_of_known, (self.launch_lead, self.idle, self.host))
        return launch_bound(mean_of_known(self.step) or 0, *means) is True


_FIGURES = attrgetter(*(f"{name}_ns" for name in _RankFigures._fields[1:]))


def _window(
    counted: Sequence[RankView], newest: int | None, window: Window, since: int
) -> list[WindowSteps]:
    if window is not Window.STEP:
        return steps_of(counted, newest or 0, window, since)
    shown = {step.rank: step for step in _alike(counted, lambda step: not step.disturbed)}
    shown |= {view.rank: view.measured for view in counted if view.measured is not None}
    return [
        WindowSteps(
            view,
            [shown[view.rank].step_ns] if view.rank in shown else [],
            [view.measured] if view.measured is not None else [],
        )
        for view in counted
    ]


def of_one_step(ranks: Sequence[RankView], step: int | None = None) -> tuple[RankView, ...]:
    """Return the ranks, each ``measured`` at `step`, or else the newest that all know. A rank that does not
    know that step keeps its own newest.
    """
    if step is None:
        found = _alike(counted_ranks(ranks), _IS_MEASURED)
        step = found[0].step if found else None
    if step is None:
        return tuple(ranks)
    return tuple(_in_step(view, step) for view in ranks)


def _mean_waits(times: Sequence[WaitTimes | None]) -> WaitTimes | None:
    known = [WAITS(each) for each in times if each is not None]
    if not known or len(known) < len(times):
        return None
    return WaitTimes(*(round(sum(each) / len(known)) for each in zip(*known, strict=True)))


def middle_cost(ranks: Iterable[RankView]) -> OwnCost | None:
    """Return the agent overhead of the median rank, of watched ranks if there are any."""
    known = [view.own_cost for view in ranks if view.own_cost is not None]
    costs = [cost for cost in known if cost.watched] or known
    return sorted(costs, key=lambda cost: cost.change)[len(costs) // 2] if costs else None


def _in_step(view: RankView, step: int) -> RankView:
    if view.measured is None or view.measured.step == step:
        return view
    known = step_of(view, step)
    if known is None or not known.measured:
        return view
    return structs.replace(view, measured=known, waits=None)


def counted_ranks(ranks: Sequence[RankView]) -> Sequence[RankView]:
    """Return the ranks that count in the job's totals."""
    seen = [view for view in ranks if view.last is not None]
    running = [view for view in seen if not view.ended]
    return stepping([view for view in running if not view.node_lost] or running or seen)


def stepping(ranks: Sequence[RankView]) -> Sequence[RankView]:
    """Return the ranks that still make steps after others stopped, as in DDP's Join; all if none does."""
    return [view for view in ranks if not view.stale] or ranks


def _alike(views: Sequence[RankView], fits: Callable[[StepTotals], bool]) -> list[StepTotals]:
    """Return each rank's newest fitting step: the same one if they have a common one."""
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
    """Return the rank's step of that number. None if it is not known, or is forgotten."""
    history = view.history
    at = len(history) - 1 - (history[-1].step - step) if history else -1
    if not (0 <= at < len(history) and history[at].step == step):  # steps are missing
        at = bisect_right(history, step, key=_NUMBER) - 1
    return history[at] if at >= 0 and history[at].step == step else None
