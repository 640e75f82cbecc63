"""Why a rank is late: the right rank, the right cause, and what mending it can win."""

import dataclasses
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlaptop.findings.find import find as ask
from overlaptop.findings.finding import Certainty, why_late
from overlaptop.fleet.waits import HOST_WORTH_SHARE
from overlaptop.wire.devices import NodeShare
from overlaptop.wire.messages import CollectiveSpan, EnvironmentFacts
from tests.fleet.builders import MS, numa, sample

from .jobs import HOST, LATE, RANKS, TRANSFER_MS, healthy, host, job, late, names, of_late, the
from .jobs import rules as all_rules

MINE = {
    "data_loading", "garbage_collection", "jitter", "late_launch", "launch_bound", "low_clock", "placement",
    "slow_compute", "slow_copies", "uneven_batches", "busy_cpu",
}  # fmt: skip
ALIKE = {"cpu_ns": of_late(60 * MS, 60 * MS)}
SMALL = [("compute", 0.1), ("idle", 0.5)] * 40  # Kernels that a CPU launches too slowly
NO_LEAD = {"launch_lead_ns": of_late(0, 9 * MS)}


def find(evidence):
    """What these rules find: in the jobs here all communication is exposed, which others speak of."""
    return tuple(each for each in ask(evidence) if each.rule in MINE)


def rules(evidence):
    return {(rule, ranks) for rule, ranks in all_rules(evidence) if rule in MINE}


def by(does, *facts, **how):
    """A job to be made."""
    return partial(job, does, *facts, **how)


IDLES, COMPUTES = late(("idle", 20)), late(("compute", 20))
SLOW_CPU = {"cpu_ns": of_late(80 * MS, 60 * MS)}
NOTHING_TO_FIND = {
    "healthy": by(healthy),
    "healthy, without a GPU": by(
        healthy, *HOST, cpu_ns=lambda rank, number: (58 + rank) * MS, loading_ns=of_late(MS, MS)
    ),
    "few steps": by(COMPUTES, steps=5),
    "a little late": by(late(("compute", 2))),
}  # fmt: skip


@pytest.mark.parametrize("what", NOTHING_TO_FIND)
def test_where_nobody_is_late_nothing_is_found(what):
    assert find(NOTHING_TO_FIND[what]()) == ()


CLOCKS = [sample(rank, sm_clock_hz=10**8 * (12 if rank == LATE else 19)) for rank in range(RANKS)]
FEW_CPUS = [
    numa(rank, state="no gpu", advice="", cpu_nodes=(NodeShare(0, 1 if rank == LATE else 8),))
    for rank in range(RANKS)
]
WRONG_NODE = numa(LATE, state="wrong node", reason="runs on node 1", advice="numactl --cpunodebind=0")
CAUSES = {
    "slow_compute": by(COMPUTES),
    "uneven_batches": by(late(("compute", 20), amount=lambda number: 0.2 + number % 4)),
    "slow_copies": by(late(("copy", 20))),
    "late_launch": by(IDLES, launch_lead_ns=of_late(30 * MS, 30 * MS)),
    "launch_bound": by(late(*SMALL), **NO_LEAD),
    "data_loading": by(IDLES, loading_ns=of_late(21 * MS, MS)),
    "busy_cpu": by(IDLES, delayed_ns=of_late(20 * MS, MS)),
    "garbage_collection": by(IDLES, full_collections=of_late(1)),
    "low_clock": by(COMPUTES, *CLOCKS),
    "placement": by(IDLES, WRONG_NODE),
    "busy_cpu, without a GPU": by(IDLES, *HOST, **ALIKE, delayed_ns=of_late(20 * MS)),
    "slow_compute, without a GPU": by(COMPUTES, *HOST, **SLOW_CPU),
    "late_launch, without a GPU": by(IDLES, *HOST, **ALIKE),
    "data_loading, without a GPU": by(IDLES, *HOST, **ALIKE, loading_ns=of_late(20 * MS)),
    "garbage_collection, without a GPU": by(IDLES, *HOST, **SLOW_CPU, full_collections=of_late(3)),
    "placement, without a GPU": by(IDLES, *HOST, *FEW_CPUS, **ALIKE),
    # What a CPU does while its GPU has work is no cause.
    "slow_compute, loads beside it": by(COMPUTES, loading_ns=of_late(30 * MS)),
}


@pytest.mark.parametrize("how", CAUSES)
def test_late_rank_is_named_with_its_cause_and_gain(how):
    evidence = CAUSES[how]()
    (found,) = find(evidence)
    assert "late_unexplained" not in names(evidence)
    assert (found.rule, found.ranks) == (how.partition(",")[0], (LATE,))
    assert found.title.startswith(f"rank {LATE}")
    assert why_late([found], LATE)
    assert found.advice
    assert found.measured
    assert 0.7 * evidence.exposed_wait_ns < found.gain_ns <= evidence.exposed_wait_ns


@pytest.mark.parametrize(
    ("slower_ms", "beside_ms", "is_found"), [(6, 20, True), (6, 4, False), (0.5, 20, False)]
)
def test_compute_that_waiting_slows_is_told_beside_the_cause(slower_ms, beside_ms, is_found):
    evidence = job(
        IDLES,
        compute_ns=of_late(65 * MS, round((65 + slower_ms) * MS)),
        hidden_ns=of_late(5 * MS, (5 + beside_ms) * MS),
    )
    assert "late_launch" in names(evidence)
    slowed = [each.ranks for each in ask(evidence) if each.rule == "slowed_by_waiting"]
    assert slowed == ([(0, 2, 3)] if is_found else [])


def test_slow_rank_with_fewer_threads_is_told_so():
    threads = [EnvironmentFacts(rank, (), 1 if rank == LATE else 8) for rank in range(RANKS)]
    found = the(job(COMPUTES, *HOST, *threads, **SLOW_CPU), "slow_compute")
    assert found.title.endswith(" longer than the others, on 1 thread where others have 8")
    assert "OMP_NUM_THREADS" in found.advice


@pytest.mark.parametrize("delayed_ms", [1, 40])
def test_gain_is_unknown_where_cpus_are_short(delayed_ms):
    """Others would use the CPU time that it leaves."""
    found = the(job(COMPUTES, *HOST, **SLOW_CPU, delayed_ns=lambda *_: delayed_ms * MS), "slow_compute")
    assert (found.gain_ns is None) == (delayed_ms == 40)


SINCE = 8  # Of the 20 steps that count, the last 14 are then of a fault


@pytest.mark.parametrize("facts", [(), HOST])
@pytest.mark.parametrize(
    ("first", "rule", "counter", "much"),
    [
        (SINCE, "data_loading", "loading_ns", 20 * MS),
        (SINCE, "busy_cpu", "delayed_ns", 20 * MS),
        (11, "garbage_collection", "full_collections", 1),
    ],
)
def test_what_began_with_the_lateness_is_its_cause(first, rule, counter, much, facts):
    since = {counter: lambda rank, number: much * (rank == LATE and number >= first)}
    does = late(("idle", 20), amount=lambda number: 1 if number >= first else 0.01)
    assert rules(job(does, *facts, steps=22, **ALIKE, **since)) == {(rule, (LATE,))}


def test_sleep_in_a_launch_bound_job_is_a_sleep():
    usual = [("compute", 0.1), ("idle", 0.2)] * 90
    evidence = job(
        lambda rank, _: [*usual, *[("idle", 12), ("compute", 0.1)] * (rank == LATE)],
        launch_lead_ns=of_late(0),
    )
    (found,) = find(evidence)
    assert (found.rule, found.ranks) == ("late_launch", (LATE,))
    assert "the longest pause, 12.2 ms, is before backward, " in found.measured


NOT_EXPLAINED = {
    "no cause": {"loading_ns": lambda *_: 20 * MS},
    "not seen": {"infos": lambda rank: {"source": "events", "compute_exact": False}},
}


@pytest.mark.parametrize("why", NOT_EXPLAINED)
def test_late_rank_that_nothing_explains_is_said_to_be_so(why):
    assert "late_unexplained" not in names(job(IDLES, steps=13, **NOT_EXPLAINED[why]))
    evidence = job(IDLES, steps=14, **NOT_EXPLAINED[why])
    assert find(evidence) == ()
    found = the(evidence, "late_unexplained")
    assert (found.ranks, found.gain_ns) == ((LATE,), evidence.exposed_wait_ns)
    assert why_late([found], LATE) == ""
    assert ("not seen" in found.measured) == (why == "not seen")


def test_steps_from_before_the_job_changed_are_no_evidence():
    evidence = job(late(("idle", 30), amount=lambda number: number >= 20), steps=30)
    assert [step.number for step in evidence.steps] == list(range(20, 30))


def test_unexplained_ranks_late_in_turn_are_one_finding():
    def by_turns(rank, number):
        return [*healthy(rank, number), ("idle", 20 * (rank == 1 + 2 * (number % 2)))]

    [found] = ask(job(by_turns, steps=42))
    assert (found.rule, found.ranks, found.gain_ns) == ("late_unexplained", (1, 3), 20 * MS)
    assert found.title == "why ranks 1, 3 are late in turn is not known"
    assert "they are late in 40 of 40 collectives" in found.measured


def test_rank_that_waits_in_another_group_passes_the_blame_on():
    """Ranks 0 and 1 are a group; the others wait for rank 1, which waits for rank 0."""

    def changed(detail):
        begin_ns, end_ns = detail.comm_spans_ns
        pair_ns = end_ns - TRANSFER_MS * MS
        at_ns = begin_ns if detail.rank > LATE else pair_ns + (1 + 2 * (detail.rank == LATE)) * MS
        both = CollectiveSpan("allreduce_", 1, "all", False, at_ns, end_ns, detail.step)
        pair = CollectiveSpan("allreduce_", 1, "pair", False, begin_ns, pair_ns + MS, detail.step)
        return replace(detail, collectives=(pair, both) if detail.rank <= LATE else (both,))

    evidence = job(late(("compute", 30), rank=0), changed=changed)
    (found,) = find(evidence)
    assert (found.rule, found.ranks) == ("slow_compute", (0,))
    assert "rank 1 passes that on" in found.measured


ms_of_a_part = st.floats(0.1, 50)
parts = st.lists(
    st.tuples(st.sampled_from(["compute", "idle", "copy"]), ms_of_a_part), min_size=1, max_size=4
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(parts, min_size=3, max_size=3), st.lists(ms_of_a_part, min_size=3, max_size=3), st.booleans()
)
def test_no_finding_promises_more_than_is_exposed_or_idle(does, costs_ms, exact):
    def cost(rank, number):
        return round(costs_ms[rank] * MS)

    unseen = [] if exact else [host(rank) for rank in range(3)]
    evidence = job(
        lambda rank, number: does[rank], *unseen, ranks=3, steps=8,
        cpu_ns=cost, delayed_ns=cost, loading_ns=cost, launch_lead_ns=cost,
    )  # fmt: skip
    lost_ns = [step.totals[rank] for step in evidence.steps for rank in range(3)]
    for each in find(evidence):
        if each.ranks:
            assert each.gain_ns is None or 0 <= each.gain_ns <= evidence.exposed_wait_ns
        elif exact:
            most = max(step.exposed_ns + step.idle_ns + step.copy_only_ns for step in lost_ns)
            assert 0 <= each.gain_ns <= most


@pytest.mark.parametrize(
    ("what", "changes", "certainty"),
    [
        ("idle", {"loading_ns": lambda *_: 20 * MS}, Certainty.MEASURED),
        ("idle", {}, Certainty.POSSIBLE),
        ("copy", {}, Certainty.POSSIBLE),
    ],
)
def test_the_whole_job_waits_for_data_where_each_rank_does(what, changes, certainty):
    (found,) = find(job(lambda rank, number: [(what, 20), ("compute", 60)], **changes))
    assert (found.rule, found.ranks, found.gain_ns) == ("data_loading", (), 20 * MS)
    assert found.certainty is certainty


@pytest.mark.parametrize(("gpu", "found"), [("", {("launch_bound", ())}), ("GPU", set())])
def test_gpu_that_another_rank_uses_meanwhile_is_not_idle(gpu, found):
    """Two ranks whose kernels take turns, by half a millisecond."""

    def turns(rank, _):
        return [("compute", 0.5), ("idle", 0.5)][:: -1 if rank else 1] * 60

    evidence = job(turns, ranks=2, gpu=gpu, launch_lead_ns=of_late(0))
    assert rules(evidence) == found


def test_late_rank_that_changes_with_compute_has_uneven_batches():
    def uneven(ms):
        return job(lambda rank, number: [("compute", 60 + ms * (number % RANKS == rank))])

    assert rules(uneven(30)) == rules(uneven(6)) == {("uneven_batches", ())}
    of_hosts = dataclasses.replace(uneven(6).window, worth_share=HOST_WORTH_SHARE)
    assert rules(dataclasses.replace(uneven(6), window=of_hosts)) == set()  # little on a busy machine


def test_late_rank_that_changes_and_computes_alike_is_jitter():
    def idles(ms, steps=14):
        return job(
            lambda rank, number: [("compute", 60), ("idle", ms * (number % RANKS == rank))], steps=steps
        )

    assert rules(idles(30, steps=13)) == rules(idles(1)) == set()
    (found,) = find(idles(30))
    assert (found.rule, found.gain_ns) == ("jitter", idles(30).exposed_wait_ns)


@pytest.mark.parametrize(("idle_ms", "changed_at", "is_found"), [(40, 40, True), (40, 24, False)])
def test_collections_in_turn_cost_what_steps_are_longer(idle_ms, changed_at, is_found):
    def collects(rank, number):
        return number % 5 == rank and number < changed_at

    def does(rank, number):
        return [
            ("idle", 1 + idle_ms * collects(rank, number)),
            ("compute", 60 if number < changed_at else 30),
        ]

    evidence = job(does, steps=40, full_collections=collects)
    found = [each for each in find(evidence) if each.rule == "garbage_collection"]
    assert [each.ranks for each in found] == [(0, 1, 2, 3)] * is_found
    assert all(0 < each.gain_ns <= 4 * 40 * MS / 5 + 1 for each in found)


@pytest.mark.parametrize(("every", "named"), [(1, [LATE]), (4, [])])
def test_host_that_is_always_late_is_named_though_others_wait_little(every, named):
    """Others wait for 7 % of the step: on a busy machine anybody may be late by that in some steps."""
    does = late(("compute", 5), amount=lambda number: 1 if number % every == 0 else 0.05)
    window = dataclasses.replace(job(does, steps=40).window, worth_share=HOST_WORTH_SHARE)
    assert [each.rank for each in window.late] == named
