"""Evidence of a job of which each rank's timeline is written out: compute, copies, collectives, phases."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from overlaptop.findings.evidence import evidence_of
from overlaptop.fleet.fleet import Fleet
from overlaptop.fleet.snapshot import LinkState
from overlaptop.timeline.overlap import break_down, stalls
from overlaptop.timeline.spans import difference, flatten, from_pairs, length_ns, union
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts
from overlaptop.wire.messages import (
    CollectiveSpan,
    EnvironmentFacts,
    EnvironmentVariable,
    PhaseSpan,
    StepDetail,
    StepTotals,
)
from tests.fleet.builders import MS, T0, Clock, info, status, welcome

MIB = 1 << 20
DDP_GROUP = "0 default_pg"


@dataclass(frozen=True)
class Timeline:
    """One rank's step of ``step_ms``; all in ms."""

    step_ms: float
    compute: tuple = ()
    """Spans."""
    calls: tuple = ()
    """Of `call`."""
    copies: tuple = ()
    phases: tuple = ()
    """Name, start, end."""
    fused: tuple = ()


def call(op, start_ms, end_ms, mib=25, group=DDP_GROUP):
    """A collective of so many MiB."""
    return op, round(start_ms * MS), round(end_ms * MS), round(mib * MIB), group


def job(lay, *facts, ranks=2, steps=6, exact=True, infos=None, **changes):
    """The evidence of a running job; ``lay(rank, number)`` is a Timeline. ``facts``: messages more."""
    fleet = Fleet(Clock())
    fleet.set_link(LinkState.LIVE)
    changed = infos or (lambda rank: {})
    people = [info(rank, exact=exact, **changed(rank)) for rank in range(ranks)]
    for message in (welcome(world_size=ranks), *people, *facts):
        fleet.apply(message)
    start_ns = T0
    for number in range(steps):
        for rank in range(ranks):
            laid = lay(rank, number)
            for message in _messages(rank, number, laid, start_ns, **changes):
                fleet.apply(message)
        start_ns += round(laid.step_ms * MS)
        fleet.snapshot()
    fleet.apply(status())
    return evidence_of(fleet.snapshot())


def environment(**variables):
    """The same on two ranks."""
    told = tuple(EnvironmentVariable(name, value) for name, value in variables.items())
    return [EnvironmentFacts(rank, told) for rank in (0, 1)]


def gradients(sizes_mib, *, first_cap_mib=None, **flags):
    """Those of a DDP model, from the last parameter to the first."""
    sizes = tuple(round(mib * MIB) for mib in sizes_mib)
    return GradientFacts(0, sizes, 2, DDP_GROUP, first_cap_mib and first_cap_mib * MIB, **flags)


def knobs(**values):
    """Knobs with these values."""
    return KnobFacts(
        0, tuple(Knob(name, value, str(value), str(value), 0, 10_000) for name, value in values.items())
    )


def _messages(rank, number, laid, start_ns, **changes):
    step_ns = round(laid.step_ms * MS)
    ends = np.array([[start, end] for _, start, end, _, _ in laid.calls], dtype=np.int64).reshape(-1, 2)
    fused = _lane(laid.fused)
    compute, copies, comm = (
        difference(lane, fused) for lane in (_lane(laid.compute), _lane(laid.copies), from_pairs(ends))
    )
    parts = break_down(0, step_ns, compute, comm, copies, fused)
    stall = stalls(0, step_ns, union(compute, fused), comm)
    phases = tuple(PhaseSpan(name, round(start * MS), round(end * MS)) for name, start, end in laid.phases)
    phase_ns = {
        f"{name}_ns": sum(each.end_ns - each.start_ns for each in phases if each.name == name)
        for name in ("forward", "backward", "optimizer")
    }
    totals = dict(
        rank=rank, step=number, start_ns=start_ns, **asdict(parts), stall_ns=length_ns(stall), **phase_ns,
        collectives=len(laid.calls), comm_bytes=sum(size for _, _, _, size, _ in laid.calls), dropped=0,
    )  # fmt: skip
    yield StepTotals(**(totals | changes))
    yield StepDetail(
        rank=rank, step=number, start_ns=start_ns, step_ns=step_ns, phases=phases,
        compute_spans_ns=flatten(compute), comm_spans_ns=flatten(comm), copy_spans_ns=flatten(copies),
        stall_spans_ns=flatten(stall), fused_spans_ns=flatten(fused),
        collectives=tuple(
            CollectiveSpan(op, size, group, True, start, end) for op, start, end, size, group in laid.calls
        ),
    )  # fmt: skip


def _lane(spans):
    return from_pairs(np.array([[round(at * MS) for at in span] for span in spans]).reshape(-1, 2))
