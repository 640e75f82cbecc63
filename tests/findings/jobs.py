"""Evidence of a job: of each rank's timelines, or of a few words about each rank before its all-reduce."""

from dataclasses import dataclass
from dataclasses import replace as with_fields

from msgspec.structs import replace

from overlaptop.findings.find import find
from overlaptop.findings.finding import evidence_of
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.knobs import GradientFacts, Knob, KnobFacts
from overlaptop.wire.messages import CollectiveSpan, EnvironmentFacts, EnvironmentVariable, PhaseSpan
from tests.fleet.builders import MS, T0, Clock, device, feed, info, laid_out, status, welcome

MIB = 1 << 20
DDP_GROUP = "0 default_pg"
PHASES = (("forward", 0, 20), ("backward", 20, 90), ("optimizer", 90, 100))
STEPS, RANKS = 12, 4
TRANSFER_MS, OPTIMIZER_MS = 5, 5
LATE = 1  # The late rank in most tests


@dataclass(frozen=True)
class Timeline:
    """One rank's step of ``step_ms``; all in ms: spans, `call`s, and phases as name, start, end."""

    step_ms: float
    compute: tuple = ()
    calls: tuple = ()
    copies: tuple = ()
    phases: tuple = ()
    fused: tuple = ()


def call(op, start_ms, end_ms, mib=25, group=DDP_GROUP):
    return CollectiveSpan(op, round(mib * MIB), group, True, round(start_ms * MS), round(end_ms * MS))


def timelines(
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
    def lane(spans):
        return [(round(start * MS), round(end * MS)) for start, end in spans]

    return laid_out(
        rank, number, start_ns, round(laid.step_ms * MS), compute=lane(laid.compute), calls=laid.calls,
        copies=lane(laid.copies), fused=lane(laid.fused),
        phases=[PhaseSpan(name, round(start * MS), round(end * MS)) for name, start, end in laid.phases],
    )  # fmt: skip


def job(
    does, *facts, ranks=RANKS, steps=STEPS, exact=True, watched=True, changed=None, infos=None, gpu=None,
    **changes
):  # fmt: skip
    """The evidence of a running job.

    ``does(rank, number)`` is what the rank does in that step, in order, as pairs of a word and ms:
    ``compute``, ``idle`` and ``copy``. Then come an all-reduce of all ranks, which ends TRANSFER_MS
    after the last rank began it, and an optimizer of OPTIMIZER_MS. ``facts``: messages more.
    ``watched``: with timelines, each as ``changed`` makes it. ``infos`` and ``gpu`` as of `timelines`.
    ``changes``: of the totals, functions of rank and number.
    """

    def lay(rank, number):
        parts = does(rank, number)
        begin_ms = sum(ms for _, ms in parts)
        end_ms = TRANSFER_MS + max(sum(ms for _, ms in does(each, number)) for each in range(ranks))
        step_ms = end_ms + OPTIMIZER_MS
        lanes, at_ms = {"compute": [], "copy": [], "idle": []}, 0
        for name, ms in parts:
            lanes[name].append((at_ms, at_ms + ms))
            at_ms += ms
        lanes["compute"].append((end_ms, step_ms))
        forward = ("forward", lanes["compute"][0][0], begin_ms)
        phases = (forward, ("backward", begin_ms, end_ms), ("optimizer", end_ms, step_ms))
        reduced = call("allreduce_", begin_ms, end_ms, 1)
        return Timeline(step_ms, lanes["compute"], (reduced,), lanes["copy"], phases)

    def told(totals, detail):
        yield replace(totals, **{name: of(totals.rank, totals.step) for name, of in changes.items()})
        if watched:
            yield changed(detail) if changed else detail

    return timelines(lay, *facts, ranks=ranks, steps=steps, exact=exact, infos=infos, told=told, gpu=gpu)


def rules(evidence):
    """The names of the rules that found something, and of which ranks."""
    return {(each.rule, each.ranks) for each in find(evidence)}


def names(evidence):
    return {each.rule for each in find(evidence)}


def the(evidence, rule):
    """What this rule found: one."""
    (found,) = [each for each in find(evidence) if each.rule == rule]
    assert found.gain_ns is None or found.gain_ns > 0
    return found


def healthy(rank, number):
    """All ranks alike, but for a little."""
    return [("idle", 1), ("compute", 60 + 0.1 * ((rank + number) % RANKS))]


def late(*more, rank=LATE, amount=lambda number: 1):
    """As `healthy`, but one rank does more, by ``amount`` of it in each step."""

    def does(each, number):
        scaled = [(name, ms * amount(number)) for name, ms in more]
        return [*healthy(each, number), *(scaled if each == rank else ())]

    return does


def of_late(value, others=0):
    """A change of the totals: the late rank's value, and the others'."""
    return lambda rank, number: value if rank == LATE else others


def host(rank):
    return replace(info(rank, exact=False), source="host", device="cpu", backend="gloo")


HOST = tuple(host(rank) for rank in range(RANKS))
"""Ranks without a GPU: what computes or stands is told by the training thread's CPU time."""


def after(earlier, evidence):
    """This evidence, of a job whose first steps were those of ``earlier`` until it changed."""
    first = len(earlier.ranks[0].history)
    return with_fields(evidence, first=first, ranks={
        rank: replace(view, history=(*earlier.ranks[rank].history, *view.history[first:]))
        for rank, view in evidence.ranks.items()
    })  # fmt: skip


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
