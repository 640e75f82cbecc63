"""The job's totals over all ranks, each rank's means, and the common step at which ranks are compared."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter

from msgspec import structs

from overlaptop.fleet.snapshot import RankView, Snapshot, Totals, Window
from overlaptop.fleet.waits import StepWaits
from overlaptop.fleet.window import WindowSteps, in_window, steps_of
from overlaptop.timeline import ratios
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.timeline.averages import mean_of_known
from overlaptop.timeline.overlap import launch_bound
from overlaptop.wire.messages import OwnCost, StepTotals

_NUMBER = attrgetter("step")
_LANES = (
    "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns", "idle_ns",
    "stall_ns", "fused_ns",
)  # fmt: skip
_NAMES = (*_LANES, "step_ns", "launch_lead_ns", "host_ns")
_FIGURES = attrgetter(*_NAMES)
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
    if window is Window.STEP:
        steps = [
            WindowSteps(view, [step.step_ns], [step] if step.measured else [])
            for view in counted
            if (step := view.measured or view.last) is not None
        ]
    else:
        steps = steps_of(counted, newest_step or 0, window, since)
    sums = [(each.view, _figures(each.measured)) for each in steps if each.measured]

    def all_ns(name: str) -> list[int]:
        return list(chain.from_iterable(figures[name] for _, figures in sums))

    compute_ns, comm_ns, fused_ns = (sum(all_ns(f"{lane}_ns")) for lane in ("compute", "comm", "fused"))
    exact = [figures["idle_ns"] for view, figures in sums if view.info and view.info.compute_exact]
    first_step = min((each.measured[0].step for each in steps if each.measured), default=None)
    if window is Window.STEP:
        waits = [view.waits for view in counted if view.measured is not None]
        split = int(None not in waits)
    else:
        split_here = in_window(step_waits, first_step)
        split = len(split_here)
        waits = [each.times.get(view.rank) for each in split_here for view in counted]
    attributed = [each for each in waits if each is not None]
    sums_ns = map(sum, zip(*attributed, strict=True)) if None not in waits else ()
    mean_ns = [round(each / len(attributed)) for each in sums_ns]
    leads_ns = [mean_of_known(figures["launch_lead_ns"]) for _, figures in sums]
    return Totals(
        step=newest_step,
        step_ns=mean_of_known(list(chain.from_iterable(each.lengths_ns for each in steps))),
        overlap=ratios.overlap(sum(all_ns("hidden_ns")), comm_ns),
        exposed_ns=mean_of_known(all_ns("exposed_ns")),
        measured_ns=mean_of_known(all_ns("step_ns")),
        fused_ns=mean_of_known(all_ns("fused_ns")),
        stall_ns=mean_of_known(all_ns("stall_ns")),
        idle_ns=mean_of_known(chain.from_iterable(exact)),
        speedup=ratios.speedup(compute_ns, comm_ns, fused_ns, sum(all_ns("step_ns"))),
        attainable=ratios.attainable(compute_ns, comm_ns, fused_ns),
        launch_lead_ns=min((lead_ns for lead_ns in leads_ns if lead_ns is not None), default=None),
        launch_bound=tuple(view.rank for view, figures in sums if _is_launch_bound(figures)),
        dropped=dropped,
        ranks=len(sums),
        measured_step=numbers.pop() if len(numbers) == 1 else None,
        waits=WaitTimes(*mean_ns) if mean_ns else None,
        step_waits=split,
        own_cost=middle_cost(counted),
        window=window,
        steps=max((len(each.measured) for each in steps), default=0),
        first_step=first_step,
        cut=any(each.cut for each in steps),
        paused_steps=max((each.paused_steps for each in steps), default=0),
    )


def with_means(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with each rank's means over the totals' window; without, if that is one step."""
    ranks, totals = snapshot.ranks, snapshot.totals
    if totals.window is Window.STEP or totals.step is None:
        bare = tuple(structs.replace(view, mean=None, mean_waits=None) for view in ranks)
        return replace(snapshot, ranks=bare)
    # A rank that ended, or makes no steps, uses its own last ones.
    together = counted_ranks(ranks)
    counted = {view.rank for view in together}
    apart = [[view] for view in ranks if view.last is not None and view.rank not in counted]
    step_waits = in_window(snapshot.kept_step_waits, totals.first_step)
    means = {
        each.view.rank: _with_mean(each, step_waits)
        for views in (together, *apart)
        for each in steps_of(views, totals.step, totals.window, snapshot.first_step)
    }
    return replace(snapshot, ranks=tuple(means.get(view.rank, view) for view in ranks))


def _with_mean(steps: WindowSteps, step_waits: Sequence[StepWaits]) -> RankView:
    view, newest = steps.view, steps.view.measured or steps.view.last
    assert newest is not None, "only ranks with a step are in a window"
    figures = _figures(steps.measured)
    lanes = {name: mean_of_known(figures[name]) for name in _LANES if name in figures}
    step_ns = mean_of_known(steps.lengths_ns) or newest.step_ns
    mean = structs.replace(newest, step_ns=step_ns, **lanes)
    waits = [found for each in step_waits if (found := each.times.get(view.rank)) is not None]
    return structs.replace(view, mean=mean, mean_waits=_share_of(mean, waits))


def _share_of(mean: StepTotals, waits: Sequence[WaitTimes]) -> WaitTimes | None:
    """Divide the mean step's communication in the proportion found in the compared steps."""
    sums = WaitTimes(*map(sum, zip(*waits, strict=True))) if waits else None
    if sums is None or not mean.exposed_ns or not sums.exposed_ns:
        return sums and WaitTimes(*(round(each / len(waits)) for each in sums))
    scale = mean.exposed_ns / sums.exposed_ns
    return WaitTimes(*(round(each * scale) for each in sums))


def _figures(steps: Sequence[StepTotals]) -> dict[str, Sequence[int]]:
    """Return the known values of each figure of measured steps; empty without steps."""
    columns = zip(*map(_FIGURES, steps), strict=True)
    return {
        name: [ns for ns in column if ns is not None] if None in column else column
        for name, column in zip(_NAMES, columns, strict=False)
    }


def _is_launch_bound(figures: dict[str, Sequence[int]]) -> bool:
    step_ns, *means = (
        mean_of_known(figures[name]) for name in ("step_ns", "launch_lead_ns", "idle_ns", "host_ns")
    )
    return launch_bound(step_ns or 0, *means) is True


def of_one_step(ranks: Sequence[RankView], step: int | None = None) -> tuple[RankView, ...]:
    """Return the ranks, each ``measured`` at `step`, or else the newest that all know. A rank that does not
    know that step keeps its own newest.
    """
    if step is None:
        step = _common_step([view for view in counted_ranks(ranks) if view.measured is not None])
    return tuple(ranks) if step is None else tuple(_in_step(view, step) for view in ranks)


def _common_step(views: Sequence[RankView]) -> int | None:
    """Return the newest step that all these ranks have measured, or else that of the first one."""
    newest = [view.measured.step for view in views if view.measured is not None]
    if not newest:
        return None
    looks = max(1, min(_MOST_LOOKS, _MOST_READ // len(newest)))
    for step in range(min(newest), min(newest) - looks, -1):
        earlier = (step_of(view, step) for view, own in zip(views, newest, strict=True) if own != step)
        if all(found is not None and found.measured for found in earlier):
            return step
    return newest[0]


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


def step_of(view: RankView, step: int) -> StepTotals | None:
    """Return the rank's step of that number. None if it is not known, or is forgotten."""
    history = view.history
    at = len(history) - 1 - (history[-1].step - step) if history else -1
    if not (0 <= at < len(history) and history[at].step == step):  # steps are missing
        at = bisect_right(history, step, key=_NUMBER) - 1
    return history[at] if at >= 0 and history[at].step == step else None
