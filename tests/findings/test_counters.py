"""Who is late by counters of all steps, before enough of them are measured."""

from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from overlaptop.findings.find import find
from overlaptop.findings.finding import Certainty
from tests.fleet.builders import MS, stacks

from .jobs import LATE, PHASES, RANKS, Timeline, call, healthy, job, names, of_late, rules, the, timelines

LANES = ("compute", "comm", "hidden", "exposed", "compute_only", "copy_only", "idle", "stall")


def counted(*facts, steps=24, source="kernels", **changes):
    """A job of which no step is measured."""
    unmeasured = {f"{lane}_ns": lambda rank, number: None for lane in LANES}
    infos = {"infos": lambda rank: {"source": source}}
    return job(healthy, *facts, steps=steps, watched=False, **infos, **unmeasured, **changes)


COUNTERS = {
    "data_loading": {"loading_ns": of_late(50 * MS, 2 * MS)},
    "busy_cpu": {"delayed_ns": of_late(50 * MS, MS)},
    "garbage_collection": {"full_collections": of_late(1), "cpu_ns": of_late(60 * MS, 10 * MS)},
}


@pytest.mark.parametrize("rule", COUNTERS)
def test_counter_of_half_the_step_names_the_rank_unmeasured(rule):
    found = the(counted(**COUNTERS[rule]), rule)
    assert (found.ranks, found.certainty, found.gain_ns) == ((LATE,), Certainty.LIKELY, None)
    assert found.why_late


@pytest.mark.parametrize("rule", COUNTERS)
def test_in_fewer_than_four_of_five_steps_it_names_nobody(rule):
    seldom = {
        name: lambda rank, number, of=of: of(rank, number) if number % 10 < 7 else of(0, number)
        for name, of in COUNTERS[rule].items()
    }
    assert rules(counted(**seldom)) == set()


@pytest.mark.parametrize(
    ("rule", "source", "ms", "others_ms", "named"),
    [
        ("data_loading", "kernels", 20, 0, False),
        ("data_loading", "host", 20, 0, True),
        ("garbage_collection", "host", 17, 10, True),
        ("garbage_collection", "kernels", 17, 10, False),
        ("busy_cpu", "host", 20, 4, True),
        ("busy_cpu", "host", 20, 8, False),
    ],
)
def test_less_than_half_counts_on_ranks_without_a_gpu_alone(rule, source, ms, others_ms, named):
    counters = dict.fromkeys(COUNTERS[rule], of_late(ms * MS, others_ms * MS))
    if rule == "garbage_collection":
        counters["full_collections"] = of_late(1)
    assert ((rule, (LATE,)) in rules(counted(source=source, **counters))) == named


def asleep(own, others=0, samples=80):
    """Samples of each rank's stack in which it was asleep, on loading, so often."""
    return [
        stacks(rank, 1, samples, asleep=at, collate=at, train=samples - at)
        for rank in range(RANKS)
        for at in [own if rank == LATE else others]
    ]


@pytest.mark.parametrize(
    ("own", "others", "source", "lead_ns", "named"),
    [
        (12, 0, "host", None, True),
        (16, 12, "host", None, False),
        (20, 0, "kernels", None, False),
        (60, 4, "kernels", None, True),
        (12, 0, "kernels", 0, True),  # a GPU that waits for each launch hides nothing
    ],
)
def test_rank_that_sleeps_more_often_is_named_with_its_line(own, others, source, lead_ns, named):
    evidence = counted(*asleep(own, others), source=source, launch_lead_ns=lambda *_: lead_ns)
    assert (("late_launch", (LATE,)) in rules(evidence)) == named
    if named:
        assert the(evidence, "late_launch").line == "train.py:1 in collate"


def test_sleep_after_the_last_step_is_a_hang_not_a_slow_rank():
    hung = [stacks(rank, 9, 80, asleep=80 * (rank == LATE), collate=80) for rank in range(RANKS)]
    assert rules(counted(*hung, source="host")) == set()


def test_measured_steps_in_which_nobody_waits_show_that_it_hides():
    assert "data_loading" not in names(job(healthy, steps=24, loading_ns=of_late(50 * MS)))


def test_three_measured_steps_confirm_a_sixth_of_the_step():
    late, late_ms = [("idle", 25)], 25
    measured = job(lambda rank, number: [*healthy(rank, number), *late * (rank == LATE)], steps=5)
    unmeasured = counted(loading_ns=of_late(late_ms * MS), step_ns=lambda *_: round(measured.step_ns))
    found = the(replace(measured, counted=unmeasured.counted), "data_loading")
    assert (found.ranks, found.certainty) == ((LATE,), Certainty.MEASURED)
    assert found.gain_ns == pytest.approx(late_ms * MS, rel=0.02)


@pytest.mark.parametrize(("gpu", "ms", "named"), [("GPU", 30, True), ("GPU", 6, False), ("", 30, False)])
def test_compute_of_ranks_that_share_a_gpu_counts(gpu, ms, named):
    """Nobody waits in collectives."""

    def does(rank, _):
        return [("compute", 60), ("compute" if rank == LATE else "idle", ms)]

    evidence = job(does, ranks=2, steps=6, gpu=gpu)
    evidence = replace(evidence, counted=(*counted(steps=8, ranks=2).counted, *evidence.counted))
    found = [each for each in find(evidence) if each.rule == "slow_compute"]
    titles = ["rank 1 computes 30.0 ms a step longer than rank 0"] * named
    assert [(each.title, each.gain_ns) for each in found] == [(title, 30 * MS) for title in titles]


BUSY_CPU, BOUND = [("busy_cpu", (LATE,))], [("communication_bound", ())]


@pytest.mark.parametrize(
    ("late_ms", "others_ms", "told_of"), [(15, 0, BOUND), (50, 0, BUSY_CPU), (25, 5, [])]
)
def test_wait_for_a_cpu_makes_transfers_long_not_ranks_late(late_ms, others_ms, told_of):
    def lay(rank, _):
        return Timeline(100, ((0, 20),), (call("allreduce_", 10, 90),), phases=PHASES)

    def told(totals, detail):
        return replaced(totals, delayed_ns=(late_ms if totals.rank == LATE else others_ms) * MS), detail

    found = find(timelines(lay, steps=12, told=told))
    assert [(each.rule, each.ranks) for each in found] == told_of
    if told_of is BUSY_CPU:
        assert (found[0].certainty, found[0].gain_ns) == (Certainty.LIKELY, None)
