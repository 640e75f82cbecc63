"""What mending wins: how much shorter the step would be, whatever ranks wait."""

import random
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

import pytest
from msgspec import structs

from overlaptop.findings.find import RULES, find
from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.late import named_late
from tests.fleet.builders import MS, stacks

from .jobs import LATE, Timeline, call, healthy, job, timelines

COMPUTE_MS = 10


def two(
    late_ms, *, more="idle", lines=({"sleep": 8}, {"sleep": 8}), cpu_ms=(5, 5), seconds=10, lead_ms=(60, 0),
    **changes
):  # fmt: skip
    """Two ranks of which rank 1 does more for so long. By rank: samples at lines, CPU time, launch lead."""
    facts = [stacks(rank, 9 + second, 10, **lines[rank]) for rank in (0, 1) for second in range(seconds)]
    by_rank = {"cpu_ns": cpu_ms, "launch_lead_ns": lead_ms} | changes
    return job(
        lambda rank, _: [("compute", COMPUTE_MS), *[(more, late_ms)] * (rank == LATE)],
        *facts, ranks=2, steps=14,
        **{name: lambda rank, _, ms=ms: round(ms[rank] * MS) for name, ms in by_rank.items()},
    )  # fmt: skip


def trails(evidence):
    """Whether a late rank costs nothing."""
    return any(each.is_slack for each in named_late(evidence))


def test_rank_is_late_whose_cost_shows_in_transfers_alone():
    """Rank 0 waits beside its backward, and has none left for the transfers."""

    def lay(rank, _):
        begins_ms, calls = 0, (call("allreduce_", 20, 62), call("allreduce_", 62, 88))
        if rank == LATE:
            begins_ms, calls = 30, (call("allreduce_", 50, 62), call("allreduce_", 63, 88))
        phases = ("forward", 0, 30), ("backward", 30, 88), ("optimizer", 88, 95)
        return Timeline(95, ((begins_ms, begins_ms + 58), (90, 95)), calls, phases=phases)

    found = why_late(timelines(lay, steps=14))
    assert found.rule == "late_launch"
    assert found.gain_ns == pytest.approx(30 * MS, rel=0.01)


def why_late(evidence):
    [found] = [each for each in find(evidence) if each.ranks == (LATE,)]
    return found


def test_gain_is_less_by_what_other_ranks_would_be_late_instead():
    draw = random.Random(1)
    varies_ms = [(draw.uniform(0, 10), draw.uniform(0, 10)) for _ in range(60)]

    def does(rank, number):
        return [("compute", COMPUTE_MS), ("idle", 1 + varies_ms[number][rank] + 15 * (rank == LATE))]

    lost_ms = fmean(max(own, other + 15) - max(own, other) for own, other in varies_ms)
    found = why_late(job(does, ranks=2, steps=60, launch_lead_ns=lambda *_: 0))
    assert lost_ms < 14
    assert found.gain_ns == pytest.approx(lost_ms * MS, rel=0.04)


@pytest.mark.parametrize(
    ("gpu", "more", "late_ms", "won_ms"),
    [("", "idle", 30, 30), ("GPU", "idle", 30, 20), ("GPU", "compute", 30, 30), ("GPU", "idle", 9, 0)],
)
def test_of_ranks_that_share_a_gpu_the_late_one_s_work_stays(gpu, more, late_ms, won_ms):
    """The other one waits for its 10 ms of compute, and would also without its lateness."""
    found = why_late(
        job(
            lambda rank, _: [*[(more, late_ms)] * (rank == LATE), ("compute", COMPUTE_MS)],
            ranks=2, steps=14, gpu=gpu,
        )
    )  # fmt: skip
    assert found.gain_ns == pytest.approx(won_ms * MS, rel=0.01)
    reason = "which costs nothing: rank 1 computes on the GPU of rank 0 meanwhile"
    assert found.title.endswith(reason) == (not won_ms)


def test_trailing_host_bound_rank_costs_nothing():
    found = why_late(two(12))
    assert (found.rule, found.gain_ns) == ("slack", 0)
    assert found.title.endswith("12.0 ms, which costs nothing: the CPU needs 32.0 ms a step on all ranks")
    assert not trails(two(12, seconds=1)), "too few samples"


OWN = {
    "spins while the other works": ({"lines": ({"item": 8}, {"work": 8}), "cpu_ms": (55, 55)}, 50),
    "not known, without lines": ({"lines": ({}, {})}, 50),
    "in a synchronisation": ({"lead_ms": (60, 0), "least_lead_ns": (1, 0)}, 50),
    "needs longer than its GPU": ({"host_ns": (32, 70)}, 38),
    "needs the whole step": ({"host_ns": (70, 70)}, 0),
}
"""What the waiting rank's host does, and what the other's lateness of 50 ms costs."""


@pytest.mark.parametrize("how", OWN)
def test_gain_is_bounded_by_the_waiting_host_unless_it_is_blocked(how):
    does, gain_ms = OWN[how]
    evidence = two(50, **does)
    assert why_late(evidence).gain_ns == pytest.approx(gain_ms * MS, rel=0.01)
    assert trails(evidence) == (not gain_ms)


def usual_steps(evidence, length):
    """The evidence with as many steps more that were not measured, of this length as a share of theirs."""
    unmeasured = [
        {
            rank: structs.replace(step, comm_ns=None, step_ns=round(length * step.step_ns))
            for rank, step in totals.items()
        }
        for totals in evidence.counted
    ]
    return replace(evidence, counted=(*evidence.counted, *unmeasured))


def test_gain_is_that_of_steps_that_measuring_does_not_slow():
    evidence = two(50, host_ns=(8, 70))
    found, usual = why_late(evidence), why_late(usual_steps(evidence, 0.8))
    assert usual.gain_ns == pytest.approx(0.8 * found.gain_ns, rel=0.01)
    assert usual.gain_share == pytest.approx(found.gain_share, rel=0.01)


@pytest.mark.parametrize(("length", "was_late", "won"), [(0.6, False, 0.4), (0.6, True, 0.5)])
def test_gain_of_a_late_rank_is_what_the_job_lost_when_it_changed(length, was_late, won):
    """By its own times it is half of the step, and that counts if the change does not show this cause."""
    evidence = usual_steps(two(20, host_ns=(8, 40)), 1.0)
    found = why_late(changed(two(20) if was_late else two(0), length, evidence))
    assert found.gain_ns == pytest.approx(won * evidence.step_ns, rel=0.01)
    assert ("longer since step 946" in found.measured) == (won == 0.4)


@pytest.mark.parametrize(("before_ms", "has_unmeasured"), [(0, True), (12, True), (0, False)])
def test_gain_without_a_busy_cpu_is_what_the_job_lost_since(before_ms, has_unmeasured):
    """Though that is many times what the rank's own thread waits for a CPU. Long steps are all measured."""
    busy = two(20, delayed_ns=(0, 12))
    busy = usual_steps(busy, 1.0) if has_unmeasured else busy
    found = why_late(changed(two(0, delayed_ns=(0, before_ms)), 0.1, busy))
    assert found.rule == "busy_cpu"
    assert found.gain_ns == pytest.approx(12 * MS if before_ms else 0.9 * busy.step_ns, rel=0.01)


@pytest.mark.parametrize(
    ("wander", "is_change", "is_known"), [(0.2, False, True), (0.4, False, False), (0.4, True, True)]
)
def test_gain_that_wandering_steps_hide_is_unknown(wander, is_change, is_known):
    """``wander``: as a share of the gain."""
    late = usual_steps(two(20, host_ns=(8, 40)), 1.0)
    late = changed(two(0), 0.6, late) if is_change else late
    gain_ns = why_late(late).gain_ns
    found = why_late(replace(late, wander_ns=wander * gain_ns))
    assert found.gain_ns == (gain_ns if is_known else None)
    assert ("steps wander by" in found.measured) == (not is_known)


def test_gain_of_less_than_what_measuring_adds_is_unknown():
    found = why_late(usual_steps(two(20, host_ns=(8, 70)), 0.7))
    assert found.gain_ns is None
    assert "measuring makes steps longer by" in found.measured


def changed(before, length, after):
    """A job since it changed. ``length``: of its steps before, as a share of those since."""
    earlier = usual_steps(before, length * after.step_ns / before.step_ns).counted
    ranks = {
        rank: structs.replace(
            view, history=[structs.replace(each[rank], step=number) for number, each in enumerate(earlier)]
        )
        for rank, view in after.ranks.items()
    }
    return replace(after, first=946, ranks=ranks)


@pytest.mark.parametrize(("host_ms", "gain_ms"), [(1, 5), (8, 3), (11, None)])
def test_less_communication_wins_what_the_slowest_host_leaves(host_ms, gain_ms):
    evidence = job(
        lambda *_: [("compute", 1)], ranks=2, host_ns=lambda rank, _: host_ms * MS * (rank == LATE)
    )
    assert evidence.step_ns == 11 * MS
    expected = {"one_after_the_other": gain_ms * MS} if gain_ms else {}
    assert {each.rule: each.gain_ns for each in find(evidence)} == expected


def test_who_mends_one_of_two_late_ranks_waits_for_the_other():
    def does(rank, number):
        return [("compute", 30 if rank in (1, 2) else 10), *[("idle", 10)] * (rank == 1 + number % 2)]

    found = [each for each in find(job(does, ranks=4, steps=24)) if each.why_late]
    assert {each.ranks for each in found} == {(1,), (2,)}
    assert [each.gain_ns for each in found] == pytest.approx([5 * MS, 5 * MS], abs=MS)


def test_gain_is_at_most_the_step_and_sorts_findings(monkeypatch):
    unknown = Finding("", "", "", Certainty.LIKELY)
    every = [unknown, replace(unknown, gain_ns=42 * 10**12), replace(unknown, why_late=True)]
    monkeypatch.setitem(RULES, "example", SimpleNamespace(look=lambda evidence: every))
    evidence = job(healthy)
    found = [(each.gain_ns, each.why_late) for each in find(evidence) if each.rule == "example"]
    assert found == [(None, True), (evidence.step_ns, False), (None, False)]
