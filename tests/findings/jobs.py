"""Evidence of a job that is made of a few words: what each rank does in each step before its all-reduce."""

from __future__ import annotations

from msgspec.structs import replace

from overlaptop.findings.evidence import evidence_of
from overlaptop.findings.find import find
from overlaptop.fleet.fleet import Fleet
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire.messages import CollectiveSpan, PhaseSpan, StepDetail
from tests.fleet.builders import MS, T0, Clock, feed, info, status, step, welcome

STEPS = 12
RANKS = 4
TRANSFER_MS = 5
OPTIMIZER_MS = 5


def job(
    does, *facts, ranks=RANKS, steps=STEPS, exact=True, watched=True, changed=None, only=None, **changes
):
    """The evidence of a running job.

    ``does(rank, number)`` is what the rank does in that step, in order, as pairs of a word and ms:
    ``compute``, ``idle`` and ``copy``. Then come an all-reduce of all ranks, which ends TRANSFER_MS
    after the last rank began it, and an optimizer of OPTIMIZER_MS. ``facts``: messages more.
    ``watched``: with timelines, each as ``changed`` makes it. ``only``: whether a rank makes a step at all.
    ``changes``: of the totals, functions of rank and number.
    """
    fleet = Fleet(Clock())
    fleet.set_link(LinkState.LIVE)
    for message in (welcome(world_size=ranks), *(info(rank, exact=exact) for rank in range(ranks))):
        fleet.apply(message)
    start_ns = T0
    for number in range(steps):
        done = {rank: does(rank, number) for rank in range(ranks)}
        begins = {rank: sum(ms for _, ms in parts) for rank, parts in done.items()}
        end_ms = max(begins.values()) + TRANSFER_MS
        for rank, parts in done.items():
            if only is not None and not only(rank, number):
                continue
            totals, detail = _step(rank, number, parts, end_ms, start_ns)
            fleet.apply(replace(totals, **{name: of(rank, number) for name, of in changes.items()}))
            if watched:
                fleet.apply(changed(detail) if changed else detail)
        start_ns += round((end_ms + OPTIMIZER_MS) * MS)
        fleet.snapshot()  # or only the last few timelines would be split
    return evidence_of(feed(fleet, status(), *facts))


def rules(evidence):
    """The names of the rules that found something, and of which ranks."""
    return {(each.rule, each.ranks) for each in find(evidence)}


def the(evidence, rule):
    """What this rule found: one."""
    (found,) = [each for each in find(evidence) if each.rule == rule]
    assert found.gain_ns is None or found.gain_ns > 0
    return found


def healthy(rank, number):
    """All ranks alike, but for a little."""
    return [("idle", 1), ("compute", 60 + 0.1 * ((rank + number) % RANKS))]


def _step(rank, number, parts, end_ms, start_ns):
    spans, at = {"compute": [], "copy": [], "idle": []}, 0
    for name, ms in parts:
        spans[name] += [round(at * MS), round((at + ms) * MS)]
        at += ms
    begin_ns, end_ns, length_ns = (round(ms * MS) for ms in (at, end_ms, end_ms + OPTIMIZER_MS))
    spans["compute"] += [end_ns, length_ns]
    sums = {name: (sum(flat[1::2]) - sum(flat[::2])) / MS for name, flat in spans.items()}
    totals = step(rank, number, **sums, comm=(end_ns - begin_ns) / MS, hidden=0, stall=0, start_ns=start_ns)
    forward_ns = spans["compute"][0] if spans["compute"] else 0
    phases = (
        PhaseSpan("forward", forward_ns, begin_ns),
        PhaseSpan("backward", begin_ns, end_ns),
        PhaseSpan("optimizer", end_ns, length_ns),
    )
    detail = StepDetail(
        rank=rank, step=number, start_ns=start_ns, step_ns=totals.step_ns, phases=phases,
        compute_spans_ns=tuple(spans["compute"]), comm_spans_ns=(begin_ns, end_ns),
        copy_spans_ns=tuple(spans["copy"]), stall_spans_ns=(begin_ns, end_ns),
        collectives=(CollectiveSpan("allreduce_", 1 << 20, "0", True, begin_ns, end_ns, number),),
    )  # fmt: skip
    return totals, detail
