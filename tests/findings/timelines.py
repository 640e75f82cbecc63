"""Evidence of a job of which each rank's timeline is written out: compute, copies, collectives, phases."""

from dataclasses import dataclass

from overlaptop.findings.finding import evidence_of
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts
from overlaptop.wire.messages import CollectiveSpan, EnvironmentFacts, EnvironmentVariable, PhaseSpan
from tests.fleet.builders import MS, T0, Clock, device, feed, info, laid_out, status, welcome

MIB = 1 << 20
DDP_GROUP = "0 default_pg"
PHASES = (("forward", 0, 20), ("backward", 20, 90), ("optimizer", 90, 100))


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
    return CollectiveSpan(op, round(mib * MIB), group, True, round(start_ms * MS), round(end_ms * MS))


def job(
    lay, *facts, ranks=2, steps=6, exact=True, infos=None, told=lambda *messages: messages, gpu=None
):  # fmt: skip
    """The evidence of a running job; ``lay(rank, number)`` is a Timeline. ``facts``: messages more.
    ``infos(rank)``: what its RankInfo has otherwise. ``told``: what a rank sends of a step, from its totals
    and its timeline. ``gpu``: the one that all ranks share.
    """
    fleet = JobState(Clock())
    fleet.set_hub_state(HubState.LIVE)
    changed = infos or (lambda rank: {})
    feed(
        fleet,
        welcome(world_size=ranks),
        *(info(rank, exact=exact, **changed(rank)) for rank in range(ranks)),
        *(device(rank, gpu) for rank in range(ranks) if gpu),
    )
    start_ns = T0
    for number in range(steps):
        laid = [lay(rank, number) for rank in range(ranks)]
        for rank, each in enumerate(laid):
            for message in told(*_messages(rank, number, each, start_ns)):
                fleet.apply(message)
        start_ns += round(laid[-1].step_ms * MS)
        fleet.snapshot()  # or only the last few timelines would be split
    return evidence_of(feed(fleet, status(), *facts))


def _messages(rank, number, laid, start_ns):
    return laid_out(
        rank, number, start_ns, round(laid.step_ms * MS), compute=_lane(laid.compute), calls=laid.calls,
        copies=_lane(laid.copies), fused=_lane(laid.fused),
        phases=[PhaseSpan(name, round(start * MS), round(end * MS)) for name, start, end in laid.phases],
    )  # fmt: skip


def environment(**variables):
    """The same on two ranks."""
    told = tuple(EnvironmentVariable(name, value) for name, value in variables.items())
    return [EnvironmentFacts(rank, told) for rank in (0, 1)]


def gradients(sizes_mib, *, first_cap_mib=None, **flags):
    """Those of a DDP model, from the last parameter to the first."""
    sizes = tuple(round(mib * MIB) for mib in sizes_mib)
    return GradientFacts(0, sizes, 2, DDP_GROUP, first_cap_mib and first_cap_mib * MIB, **flags)


def knobs(rank=0, **values):
    """Knobs with these values."""
    return KnobFacts(
        rank, tuple(Knob(name, value, str(value), str(value), 0, 10_000) for name, value in values.items())
    )


def commanded(**values):
    """Such knobs on two ranks that obey commands."""
    return [fact for rank in (0, 1) for fact in (info(rank, control_allowed=True), knobs(rank, **values))]


def _lane(spans):
    return [(round(start * MS), round(end * MS)) for start, end in spans]
