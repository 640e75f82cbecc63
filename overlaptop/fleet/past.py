"""Looks back into a job's kept steps: one of them, or the figures over another window. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from msgspec import structs

from overlaptop.fleet.snapshot import HubState, RankView, Snapshot, Window
from overlaptop.fleet.totals import step_of, total
from overlaptop.fleet.wait_breakdown import DISTURBED, break_down_alone, show_step, window_of
from overlaptop.text import named_ranks
from overlaptop.timeline.averages import mean_of_known
from overlaptop.wire.messages import StepDetail, StepTotals

NO_TIMELINES = "no timeline of this step is kept"
_MOST_ASKED = 64


def in_step(snapshot: Snapshot, number: int) -> Snapshot:
    """Return the ranks, the job's figures and the waiting in this step. A rank that does not know the step
    has neither figures nor a timeline.
    """
    ranks = tuple(_in_step(view, number) for view in with_timelines(snapshot.ranks, number))
    partial = 0 < len(snapshot.compared) < len(ranks)
    compared = [view for view in ranks if view.last and not (partial and view.detail is None)]
    waits, why = None, ""
    if all(view.detail is None for view in ranks):
        why = NO_TIMELINES
    elif absent := [view.rank for view in compared if view.detail is None]:
        why = f"no timeline of {named_ranks(absent)} is kept of this step"
    elif any(view.last is not None and view.last.disturbed for view in compared):
        why = DISTURBED
    else:
        before = with_timelines(snapshot.ranks, number - 1)
        waits = break_down_alone(compared, before, snapshot.nodes, partial=partial)
    alone = show_step(replace(snapshot, ranks=ranks), waits, why)
    step_ns = mean_of_known(view.last.step_ns for view in ranks if view.last is not None)
    return replace(alone, totals=replace(total(alone.ranks, snapshot.totals.dropped), step_ns=step_ns))


def over_window(snapshot: Snapshot, window: Window) -> Snapshot:
    """Return the Snapshot with the job's figures over this window. One step also gets its own waiting."""
    if window is snapshot.totals.window:
        return snapshot
    kept, wait_window = snapshot.kept_step_waits, snapshot.wait_window
    totals = total(snapshot.ranks, snapshot.totals.dropped, window, kept, snapshot.first_step)
    if window is Window.STEP:
        step = [each for each in kept if each.step == totals.measured_step]
        wait_window = window_of(step, alone=True)
    return replace(snapshot, totals=totals, wait_window=wait_window)


def kept_steps(view: RankView) -> list[StepTotals]:
    """Return the steps of a rank that a user can go back to, oldest first. Steps known only by their length
    count only if there are no others.
    """
    return [step for step in view.history if step.measured] or list(view.history)


def beside(view: RankView, number: int, steps: int) -> int | None:
    """Return the kept step this many steps after the given one, or before it. None if nothing is kept."""
    numbers = [step.step for step in kept_steps(view)]
    at = bisect_left(numbers, number)
    if steps > 0 and (at == len(numbers) or numbers[at] != number):
        at -= 1  # `at` is already the step after it
    return numbers[min(max(at + steps, 0), len(numbers) - 1)] if numbers else None


def slowest_step(snapshot: Snapshot) -> int | None:
    """Return the kept step with the longest mean over ranks, without those that a command disturbed. With
    many ranks, only the first ones count. Steps without a timeline count only if there are no others.
    """
    ranks = snapshot.ranks[:_MOST_ASKED]
    # A trace has timelines of all its steps, but the Snapshot has only the chosen one.
    kept = [{each.step for each in view.timelines} for view in ranks if view.timelines]
    is_trace = snapshot.hub_state is HubState.TRACE
    drawn = set[int]() if is_trace or not kept else set.intersection(*kept) or set.union(*kept)
    lengths_ns: dict[int, list[int]] = {}
    for view in ranks:
        for step in kept_steps(view):
            if not step.disturbed and (not drawn or step.step in drawn):
                lengths_ns.setdefault(step.step, []).append(step.step_ns)
    return max(lengths_ns, key=lambda step: fmean(lengths_ns[step]), default=None)


def with_timelines(views: Sequence[RankView], number: int) -> tuple[RankView, ...]:
    """Return the ranks, each with its timeline of this step only."""

    def timeline(view: RankView) -> StepDetail | None:
        newest = (each for each in reversed(view.details) if each.step == number)
        kept = (each.unpack() for each in reversed(view.timelines) if each.step == number)
        return next(newest, None) or next(kept, None)

    found = [(view, timeline(view)) for view in views]
    return tuple(
        structs.replace(view, detail=detail, details=(detail,) if detail is not None else ())
        for view, detail in found
    )


def _in_step(view: RankView, number: int) -> RankView:
    step = step_of(view, number)
    view = structs.replace(view, last=step, measured=None, mean=None, traffic=None, nic_traffic=None)
    if step is None:
        return structs.replace(view, samples=())
    return structs.replace(
        view,
        measured=step if step.measured else None,
        samples=tuple(each for each in view.samples if each.at_ns <= step.start_ns + step.step_ns),
        # A rank that made this step was running then, whatever happened later.
        stale=False,
        silent=False,
        node_lost=False,
        end=None,
        stalled=None,
    )
