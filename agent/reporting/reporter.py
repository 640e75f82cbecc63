"""Sends the finished steps of one rank: totals of all, details of some while a dashboard watches."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from msgspec.structs import replace

from overlaptop.agent.control.action import CAPTURED, TRANSITIONAL, TRIAL, TRIAL_SWITCH, StepMarks
from overlaptop.agent.hooks.process_groups import members_of
from overlaptop.agent.hooks.training_thread import TrainingThread
from overlaptop.agent.reporting.sender import Sender
from overlaptop.agent.sources.base import Source, StepSpans
from overlaptop.agent.sources.schedule import Schedule, spread
from overlaptop.timeline import spans
from overlaptop.timeline.collectives import sum_where_known
from overlaptop.timeline.overlap import Breakdown, break_down
from overlaptop.wire.bounds import MOST_CHANGE
from overlaptop.wire.messages import (
    MAX_LAST_GROUPS,
    CollectiveSpan,
    GroupMembers,
    OwnCost,
    PhaseSpan,
    StepDetail,
    StepTotals,
)

Timed = TypeVar("Timed", CollectiveSpan, PhaseSpan)

UNMEASURED: dict[str, Any] = dict.fromkeys(field.name for field in fields(Breakdown))
OWN_TIMES = ("launch_lead_ns", "least_lead_ns", "host_ns", "comm_kernels_ns", "matched_ns")
"""Fields of both, StepSpans and StepTotals, known of steps that no command disturbed."""
MAX_SEGMENTS = 512  # Segments sent for one lane; a terminal has fewer cells
MAX_COLLECTIVES = 1024
MAX_DETAILS = 4  # Details sent at once when several measured steps arrive together
MAX_MEMBERS = 64  # Larger groups are sent without their members: a dashboard never compares more ranks


class StepReports:
    """On the agent's thread."""

    def __init__(self, recent_ns: deque[int]) -> None:
        """``recent_ns`` gets the length of each undisturbed step."""
        self._recent_ns = recent_ns
        self._details_due = 0  # Steps whose detail may be sent now. It grows by one each round.
        self._comparisons = 0  # Comparisons of the cost meter when the cost was sent last

    def send(self, source: Source, sender: Sender, marks: StepMarks, thread: TrainingThread | None) -> None:
        """Send the steps that the source has finished. ``thread``: tells how its thread spent them."""
        rank, schedule, own = sender.place.rank, source.schedule, []
        schedule.follow(sender.wanted)
        taken = source.take()
        if thread is not None:
            thread.sample()
        for measured in taken:
            mark = marks.of(measured.step)
            step = totals(measured, rank, sender.dropped + source.lost, mark, thread)
            sender.put(step)
            if not mark:
                self._recent_ns.append(step.step_ns)
                own.append(measured)
        if schedule.cost.comparisons != self._comparisons:
            self._comparisons = schedule.cost.comparisons
            if (cost := own_cost(schedule, rank)) is not None:
                sender.put_state(cost)
        if not sender.wanted.detail:
            return
        self._details_due = min(self._details_due + 1, MAX_DETAILS)
        for measured in best_detailed(own, self._details_due):
            titles = {each.group for each in measured.collectives}
            sender.put(detail(measured, rank, members_of(titles, MAX_MEMBERS)))
            self._details_due -= 1


def totals(
    measured: StepSpans, rank: int, dropped: int, mark: str = "", thread: TrainingThread | None = None
) -> StepTotals:
    """Return the step in numbers; lanes are None if only its phases were measured.

    ``mark``: from StepMarks; if set, a command disturbed the step, so its parts are left out. ``thread``:
    supplies the training thread's times.
    """
    spent = thread.take(measured.step) if thread is not None else None
    phase_ns: Counter[str] = Counter()
    for phase in measured.phases:
        phase_ns[phase.name] += phase.end_ns - phase.start_ns
    known = bool(measured.phases)
    own, detailed = not mark, measured.detailed and not mark
    named = detailed and measured.named
    link = measured.link if named else None
    lanes = measured.compute, measured.comm, measured.copy, measured.fused
    parts = asdict(break_down(measured.start_ns, measured.end_ns, *lanes)) if detailed else UNMEASURED
    times: dict[str, Any] = {name: getattr(measured, name) if own else None for name in OWN_TIMES}
    return StepTotals(
        rank=rank,
        step=measured.step,
        start_ns=measured.start_ns,
        **{**parts, **times, "step_ns": measured.end_ns - measured.start_ns},
        stall_ns=spans.length_ns(measured.stall) if detailed else None,
        forward_ns=phase_ns["forward"] if known else None,
        backward_ns=phase_ns["backward"] if known else None,
        optimizer_ns=phase_ns["optimizer"] if known else None,
        collectives=measured.collective_count,
        comm_bytes=sum_where_known(each.bytes for each in measured.collectives) if named else None,
        dropped=dropped,
        captured=mark == CAPTURED,
        transitional=mark in (TRANSITIONAL, TRIAL_SWITCH),
        trial=mark in (TRIAL, TRIAL_SWITCH),
        link_tx_bytes=link.tx if link else None,
        link_rx_bytes=link.rx if link else None,
        nic_tx_bytes=link.nic_tx if link else None,
        nic_rx_bytes=link.nic_rx if link else None,
        **(spent._asdict() if spent else {}),
    )


def own_cost(schedule: Schedule, rank: int) -> OwnCost | None:
    """Return the agent's cost on this rank; None until it is known."""
    cost = schedule.cost.estimate()
    if cost is None:
        return None
    measured = min(max(cost.share, -MOST_CHANGE), MOST_CHANGE), min(cost.error, MOST_CHANGE)
    share = schedule.touched_share
    return OwnCost(rank, share * measured[0], share * measured[1], *measured, schedule.watched)


def best_detailed(steps: Iterable[StepSpans], most: int) -> list[StepSpans]:
    """Choose up to `most` of these steps to send in detail, in their order.

    To compare ranks, all must choose the same steps, though each sends at its own times. So steps are
    ranked by number alone.
    """
    fit = [step for step in steps if step.detailed and step.named]
    fit.sort(key=lambda each: spread(each.step))
    return sorted(fit[:most], key=lambda each: each.step)


def detail(
    measured: StepSpans, rank: int, members: Mapping[str, tuple[int, ...]] | None = None
) -> StepDetail:
    """Return the step's timeline to draw, in ns from its start. ``members``: ranks of its groups, if
    known.
    """
    start_ns, step_ns = measured.start_ns, measured.end_ns - measured.start_ns

    def flat(lane: spans.Spans) -> tuple[int, ...]:
        return spans.flatten(spans.coalesce(lane, MAX_SEGMENTS) - start_ns)

    def from_start(each: Timed) -> Timed:
        return replace(each, start_ns=each.start_ns - start_ns, end_ns=each.end_ns - start_ns)

    return StepDetail(
        rank=rank,
        step=measured.step,
        start_ns=start_ns,
        step_ns=step_ns,
        phases=tuple(map(from_start, measured.phases[:MAX_COLLECTIVES])),
        compute_spans_ns=flat(measured.compute),
        comm_spans_ns=flat(measured.comm),
        copy_spans_ns=flat(measured.copy),
        stall_spans_ns=flat(measured.stall),
        collectives=tuple(map(from_start, measured.collectives[:MAX_COLLECTIVES])),
        fused_spans_ns=flat(measured.fused),
        groups=tuple(GroupMembers(*each) for each in (members or {}).items())[:MAX_LAST_GROUPS],
    )
