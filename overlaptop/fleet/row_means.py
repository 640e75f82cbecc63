"""The ranks' rows: each rank's means over the window of the job's totals. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from msgspec import structs

from overlaptop.fleet.snapshot import RankView, Snapshot, Window
from overlaptop.fleet.totals import WAITS, counted_ranks
from overlaptop.fleet.waits import StepWaits
from overlaptop.fleet.window import WindowSteps, in_window, steps_of
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.timeline.averages import mean_of_known
from overlaptop.wire.messages import StepTotals

_NAMES = (
    "compute_ns", "comm_ns", "hidden_ns", "exposed_ns", "compute_only_ns", "copy_only_ns", "idle_ns",
    "stall_ns", "fused_ns",
)  # fmt: skip
_FIGURES = attrgetter(*_NAMES)


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
    steps = [
        each
        for views in (together, *apart)
        for each in steps_of(views, totals.step, totals.window, snapshot.first_step)
    ]
    step_waits = in_window(snapshot.kept_step_waits, totals.first_step)
    means = {each.view.rank: _with_mean(each, step_waits) for each in steps}
    return replace(snapshot, ranks=tuple(means.get(view.rank, view) for view in ranks))


def _with_mean(steps: WindowSteps, step_waits: Sequence[StepWaits]) -> RankView:
    view, newest = steps.view, steps.view.measured or steps.view.last
    assert newest is not None, "only ranks with a step are in a window"
    columns = zip(*map(_FIGURES, steps.measured), strict=True)
    figures = dict(zip(_NAMES, map(mean_of_known, columns), strict=False))
    step_ns = mean_of_known(steps.lengths_ns) or newest.step_ns
    mean = structs.replace(newest, step_ns=step_ns, **figures)
    waits = [found for each in step_waits if (found := each.times.get(view.rank)) is not None]
    return structs.replace(view, mean=mean, mean_waits=_share_of(mean, waits))


def _share_of(mean: StepTotals, waits: Sequence[WaitTimes]) -> WaitTimes | None:
    """Divide the mean step's communication in the proportion found in the compared steps."""
    sums = WaitTimes(*map(sum, zip(*map(WAITS, waits), strict=True))) if waits else None
    if sums is None or not mean.exposed_ns or not sums.exposed_ns:
        return sums and WaitTimes(*(round(each / len(waits)) for each in WAITS(sums)))
    scale = mean.exposed_ns / sums.exposed_ns
    return WaitTimes(*(round(each * scale) for each in WAITS(sums)))
