"""Computes who waited for whom in a step, from the timelines of all its ranks. Pure."""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean

from msgspec import structs

from overlaptop.fleet.change_points import ChangePoints
from overlaptop.fleet.snapshot import WHOLE_TRACE, NodeView, RankView, Snapshot, Window
from overlaptop.fleet.totals import of_one_step, step_of, stepping, total
from overlaptop.fleet.waits import (
    HOST_WORTH_SHARE,
    LATE_SHARE,
    WORTH_SHARE,
    SharedGpu,
    StepWaits,
    TransferHistory,
    WaitWindow,
)
from overlaptop.fleet.watching import ComparedRanks
from overlaptop.fleet.window import EVIDENCE_STEPS, WINDOW_NS, in_window
from overlaptop.text import named_ranks
from overlaptop.timeline.arrivals import Collective, Waiting, WaitTimes, combined, waiting
from overlaptop.timeline.matching import match
from overlaptop.timeline.overlap import NO_LEAD
from overlaptop.timeline.spans import difference, from_pairs, intersection, length_ns, unflatten, union
from overlaptop.wire.bounds import MAX_DURATION_NS
from overlaptop.wire.messages import StepDetail, StepTotals

KEPT_STEPS = 600
RESTARTED_NS = 1_000_000_000
"""A lower-numbered step that began this much later comes from restarted ranks, which count from 0 again."""
FAR_AHEAD_NS = 3_000_000_000
"""All ranks are shown at their newest common step if it began this much later than the broken-down one."""
LEAD_STEPS = 3, 16  # Fewest and most measured steps that show whether the CPU launches ahead of the GPU

NOT_YET = "the timelines of all ranks in one step are not here yet"
DISTURBED = "a capture or a change disturbed the step"
NO_COLLECTIVES = "ranks have no collective in common"


class WaitBreakdown:
    """Breaks each step down into wait and transfer once all ranks' timelines are here. Keeps the steps of
    one minute, and the newest EVIDENCE_STEPS at any age.
    """

    def __init__(self) -> None:
        self._kept: deque[StepWaits] = deque(maxlen=KEPT_STEPS)
        self._transfers = TransferHistory()
        self._last: StepWaits | None = None
        """Last step broken down. Kept after it is forgotten, because its timelines stay for a while."""
        self._changes = ChangePoints()
        self._compared = ComparedRanks()
        self._window: tuple[tuple[StepWaits, ...], WaitWindow | None] = ((), None)

    def break_down(self, snapshot: Snapshot) -> Snapshot:
        """Break down new steps. Return the Snapshot with the breakdowns, all ranks at the same step, and
        totals.
        """
        views, fresh = snapshot.ranks, []
        self._changes.look(views)
        if self._compared.look(views, snapshot.at_ns):
            self._kept.clear()  # a window has steps of the same ranks
        partial = len(self._compared.ranks) < len(views)
        for details in self._complete(views):
            earlier = self._kept[-1].collectives if self._kept else ()
            each = _break_down(views, details, snapshot.nodes, earlier, partial=partial)
            fresh.append(each)
            self._transfers.add(each)
            if self._kept and each.step <= self._kept[-1].step:
                self._kept.clear()
            if self._kept:  # thousands of objects would slow the garbage collector
                self._kept[-1] = replace(self._kept[-1], collectives=())
            self._kept.append(each)
            self._last = each
            self._changes.add_waits(each)
        self._forget(views)
        first_step = self._changes.first_step
        kept = tuple(self._kept)
        newest = kept[-1] if kept else None
        since = [each for each in kept if each.step >= first_step]
        steps = tuple(in_window(since[-EVIDENCE_STEPS:], None))
        if steps != self._window[0]:
            are_bare = all(map(hides_nothing, views))
            self._window = steps, window_of(steps, HOST_WORTH_SHARE if are_bare else WORTH_SHARE)
        window = self._window[1]
        absent = [
            view.rank
            for view in views
            if view.rank in self._compared.ranks and not (view.details or view.ended)
        ]
        not_attributed = f"no timeline of {named_ranks(absent)} is here" if absent and not kept else NOT_YET
        if steps:
            not_attributed = "" if window else _why(kept[-1].collectives)
        ranks = _with_waits(views, newest)
        dropped = snapshot.totals.dropped
        return replace(
            snapshot,
            ranks=ranks,
            totals=total(ranks, dropped, Window.SECONDS, kept[-EVIDENCE_STEPS:], first_step),
            waits=newest,
            wait_window=window,
            not_attributed=not_attributed,
            fresh_waits=tuple(fresh),
            step_waits=steps,
            kept_step_waits=kept,
            transfers=self._transfers.kept,
            first_step=first_step,
            before_step=self._changes.before_step,
            wander_ns=self._changes.wander_ns,
            compared=self._compared.ranks,
        )

    def _complete(self, views: Sequence[RankView]) -> list[dict[int, StepDetail]]:
        """Return the new steps with timelines from all compared ranks, by rank, in step order."""
        last = self._last
        of_step: dict[int, dict[int, StepDetail]] = {}
        compared = [view for view in views if view.rank in self._compared.ranks]
        for view in compared:
            for detail in view.details:
                of_step.setdefault(detail.step, {})[view.rank] = detail
        complete = []
        present = {view.rank for view in stepping([view for view in views if not view.ended])}
        for step, details in of_step.items():
            begun_ns = _begun_ns(details)
            needed = {view.rank for view in compared if _took_part(view, step, begun_ns, present)}
            is_new = last is None or step > last.step or begun_ns > last.start_ns + RESTARTED_NS
            if not is_new or not needed <= details.keys():
                continue
            known = (step_of(view, step) for view in views)
            if not any(totals is not None and totals.disturbed for totals in known):
                complete.append(details)
        return sorted(complete, key=_begun_ns)

    def _forget(self, views: Sequence[RankView]) -> None:
        """Drop steps from before a change of a setting, and old steps that no window needs."""
        self._transfers.forget(self._changes.changed_setting)
        newest_ns = max((view.last.start_ns for view in views if view.last is not None), default=0)
        while self._kept:
            oldest = self._kept[0]
            is_young = newest_ns - oldest.start_ns <= WINDOW_NS[Window.MINUTE]
            is_evidence = is_young or len(self._kept) <= EVIDENCE_STEPS
            if oldest.step > self._changes.changed_setting and is_evidence:
                break
            self._kept.popleft()


def _took_part(view: RankView, step: int, begun_ns: int, present: Collection[int]) -> bool:
    """Whether a rank takes part in this step: it neither ended nor stopped stepping before it."""
    if view.end is not None:
        return view.end.at_ns > begun_ns
    return view.rank in present or (view.last is not None and view.last.step >= step)


def _with_waits(views: Sequence[RankView], waits: StepWaits | None) -> tuple[RankView, ...]:
    """Return all ranks at one step: the broken-down one, unless a common newer one is far ahead of it."""
    newest = of_one_step(views)
    broken_down = of_one_step(views, waits.step) if waits is not None else newest
    if waits is None or _began_ns(newest) - _began_ns(broken_down) > FAR_AHEAD_NS:
        return newest
    return tuple(
        structs.replace(view, waits=waits.times.get(view.rank))
        if view.measured is not None and view.measured.step == waits.step
        else view
        for view in broken_down
    )


def _began_ns(views: Sequence[RankView]) -> int:
    return max((view.measured.start_ns for view in views if view.measured is not None), default=0)


def break_down_alone(
    views: Sequence[RankView], before: Iterable[RankView], nodes: Sequence[NodeView], *, partial: bool
) -> StepWaits:
    """Break down the step of the ranks' ``detail``. ``before``: the ranks with the previous ``detail``,
    whose collectives may end in this step. ``partial``: as in `_matched`.
    """
    details, earlier = _details(views), _details(before)
    running = _matched(earlier, nodes, partial=partial) if earlier.keys() == details.keys() else ()
    return _break_down(views, details, nodes, running, partial=partial)


def _details(views: Iterable[RankView]) -> dict[int, StepDetail]:
    return {view.rank: view.detail for view in views if view.detail is not None}


def show_step(snapshot: Snapshot, step: StepWaits | None, not_attributed: str = "") -> Snapshot:
    """Return the Snapshot with the breakdown of one step or trace, or with why there is none."""
    window = window_of([step], alone=True) if step is not None else None
    times = step.times if step is not None else {}
    steps = (step,) if step is not None else ()
    return replace(
        snapshot,
        ranks=tuple(structs.replace(view, waits=times.get(view.rank)) for view in snapshot.ranks),
        waits=step,
        wait_window=window,
        not_attributed=_why(step.collectives) if step is not None and window is None else not_attributed,
        fresh=(),
        fresh_samples=(),
        fresh_waits=(),
        step_waits=steps,
        kept_step_waits=steps,
    )


def _break_down(
    views: Sequence[RankView],
    details: Mapping[int, StepDetail],
    nodes: Sequence[NodeView],
    earlier: Iterable[Collective] = (),
    *,
    partial: bool,
) -> StepWaits:
    """`earlier`: collectives of the previous step that may end in this one. `partial`: as in `_matched`."""
    step, begun_ns = next(iter(details.values())).step, _begun_ns(details)
    collectives = _matched(details, nodes, partial=partial)
    running = [each for each in earlier if each.last_end_ns > begun_ns]
    own = {view.rank: view for view in views if view.rank in details}
    waited: dict[int, Waiting] = {}
    times: dict[int, WaitTimes] = {}
    for rank, view in own.items():
        detail = details[rank]
        start_ns, comm = detail.start_ns, unflatten(detail.comm_spans_ns) + detail.start_ns
        both = (*running, *collectives)
        waited[rank] = waiting(rank, comm, both, start_ns, start_ns + detail.step_ns)
        times[rank] = _times(detail, step_of(view, step), waited[rank])
    mean_ns = round(fmean(detail.step_ns for detail in details.values()))
    shared = _shared_gpus(own.values(), details, waited)
    return StepWaits.of(step, begun_ns, mean_ns, collectives, times, shared)


def _matched(
    details: Mapping[int, StepDetail], nodes: Sequence[NodeView], *, partial: bool = False
) -> tuple[Collective, ...]:
    """``partial``: only some ranks of a large job are compared, so those members of a group that are."""
    known = {
        (rank, each.group): tuple(sorted(set(each.members)))
        for rank, detail in details.items()
        for each in detail.groups
        if rank in each.members
    }
    of_title: dict[str, set[tuple[int, ...]]] = {}
    for (_, title), ranks in known.items():
        of_title.setdefault(title, set()).add(ranks)
    # Several groups may share a title, as those of a mesh do.
    names = {
        (rank, title): f"{title} {ranks}"
        for (rank, title), ranks in known.items()
        if len(of_title[title]) > 1
    }
    members = {names.get(key, key[1]): ranks for key, ranks in known.items()}
    if partial:
        here = {name: tuple(filter(details.__contains__, ranks)) for name, ranks in members.items()}
        members = {name: ranks if len(ranks) > 1 else members[name] for name, ranks in here.items()}
    ranks_of: defaultdict[str, set[int]] = defaultdict(set)
    for rank, detail in details.items() if len(nodes) > 1 else ():
        for each in detail.collectives:
            ranks_of[names.get((rank, each.group), each.group)].add(rank)
    return match(
        {rank: detail.collectives for rank, detail in details.items()},
        origins_ns={rank: detail.start_ns for rank, detail in details.items()},
        names=names,
        members=members,
        clock_error_ns={group: _clock_error_ns(ranks, nodes) for group, ranks in ranks_of.items()},
    )


def _clock_error_ns(ranks: Collection[int], nodes: Iterable[NodeView]) -> int:
    homes = [node for node in nodes if any(rank in node.ranks for rank in ranks)]
    if len(homes) < 2:
        return 0
    errors_ns = [MAX_DURATION_NS if home.residual_ns is None else home.residual_ns for home in homes]
    return sum(sorted(errors_ns)[-2:])


def _times(detail: StepDetail, totals: StepTotals | None, waited: Waiting) -> WaitTimes:
    times = waited.times(unflatten(detail.compute_spans_ns) + detail.start_ns)
    if totals is None or totals.comm_ns is None or totals.exposed_ns is None:
        return times
    exposed_ns = totals.exposed_ns - times.exposed_wait_ns - times.exposed_transfer_ns
    return times._replace(
        not_attributed_ns=max(0, totals.comm_ns - times.wait_ns - times.transfer_ns),
        exposed_not_attributed_ns=max(0, exposed_ns),
    )


def _shared_gpus(
    views: Iterable[RankView], details: Mapping[int, StepDetail], waited: Mapping[int, Waiting]
) -> dict[int, SharedGpu]:
    of_gpu: defaultdict[str, list[StepDetail]] = defaultdict(list)
    for view in views:
        if view.gpu_uuid:
            of_gpu[view.gpu_uuid].append(details[view.rank])
    found = {}
    for own in of_gpu.values():
        if len(own) == 1:
            continue
        compute = {
            each.rank: union(*map(unflatten, (each.compute_spans_ns, each.fused_spans_ns))) + each.start_ns
            for each in own
        }
        for each in own:
            step = from_pairs([(each.start_ns, each.start_ns + each.step_ns)])
            copies = unflatten(each.copy_spans_ns) + each.start_ns
            wait = difference(waited[each.rank].wait, compute[each.rank])
            idle = difference(step, union(compute[each.rank], waited[each.rank].comm, copies))
            theirs = union(*(spans for rank, spans in compute.items() if rank != each.rank))
            found[each.rank] = SharedGpu(*(length_ns(intersection(part, theirs)) for part in (wait, idle)))
    return found


def _begun_ns(details: Mapping[int, StepDetail]) -> int:
    return min(detail.start_ns for detail in details.values())


def hides_nothing(view: RankView) -> bool:
    """Whether nothing hides what disturbs its training thread: it has no GPU, or that waited for launches
    in most of its newest measured steps.
    """
    if view.info is not None and view.info.source == "host":
        return True
    fewest, most = LEAD_STEPS
    measured = (step for step in reversed(view.history) if step.launch_lead_ns is not None)
    late = [(step.launch_lead_ns or 0) < NO_LEAD * step.step_ns for step in islice(measured, most)]
    return len(late) >= fewest and sum(late) >= LATE_SHARE * len(late)


def window_of(
    steps: Sequence[StepWaits], worth_share: float = WORTH_SHARE, *, alone: bool = False
) -> WaitWindow | None:
    """Summarise these steps. None if none has a breakdown. `worth_share`: as in WaitWindow.

    `alone`: the steps are one chosen step or a whole trace, not a sample of a job's many steps.
    """
    late = combined(each.lateness for each in steps if each.lateness is not None)
    if late is None:
        return None
    late_rank, late_steps = Counter(step.main_late_rank for step in steps).most_common(1)[0]
    awaited = late.late_rank if late_rank is None else late_rank
    of_rank: dict[int, list[int]] = {}
    for each in steps:
        for rank, times in each.times.items():
            of_rank.setdefault(rank, []).append(times.exposed_wait_ns)
    waits_ns = list(_waits_for(awaited, steps))
    is_one_step = len(steps) == 1 and steps[0].step != WHOLE_TRACE
    chances = len(steps) if not alone else None if is_one_step else late.collectives
    summed = map(sum, zip(*waits_ns, strict=True)) if waits_ns else (0, 0, 0, 0)
    wait_ns, not_attributed_ns, bared_ns, steps_ns = summed
    return WaitWindow(
        lateness=late,
        steps=len(steps),
        exposed_wait_ns=round(wait_ns / max(1, len(waits_ns))),
        share=wait_ns / max(1, steps_ns),
        not_attributed_share=not_attributed_ns / max(1, steps_ns),
        late_rank=late_rank,
        late_steps=late_steps if late_rank is not None else 0,
        passed_on_wait=steps[-1].passed_on_wait,
        waits_ns={rank: fmean(own_ns) for rank, own_ns in of_rank.items()},
        worth_share=worth_share,
        bared_share=bared_ns / max(1, steps_ns),
        chances=chances,
    )


def _waits_for(awaited: int | None, steps: Iterable[StepWaits]) -> Iterable[tuple[int, int, int, int]]:
    """Yield what each other rank waits for it in each step, exposed, and the same that is not attributed;
    the transfer that only this rank hides; and the step. All in ns.
    """
    for step in steps:
        late = step.times.get(awaited) if awaited is not None else None
        for rank, own in step.times.items():
            if rank != awaited:
                bared_ns = own.bared_ns(late) if late is not None else 0
                yield own.exposed_wait_ns, own.exposed_not_attributed_ns, bared_ns, step.step_ns


def _why(collectives: Sequence[Collective]) -> str:
    reasons = Counter(each.not_attributed for each in collectives if each.not_attributed).most_common(1)
    return reasons[0][0] if reasons else NO_COLLECTIVES
