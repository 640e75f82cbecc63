"""The line of the script at which a late rank is for longer than the others."""

import pytest
from msgspec.structs import replace

from overlaptop.findings.find import find
from overlaptop.findings.finding import why_late
from overlaptop.findings.lines import slow_line
from tests.fleet.builders import MS, stacks

from .jobs import HOST, LATE, RANKS, Timeline, call, job, late, of_late, the, timelines

OTHERS = {0, 2, 3}
LINE = "train.py:1 in collate"
IDLES = late(("idle", 20))


def sampled(second=9, own=7, others=1, samples=10, ranks=range(RANKS)):
    """Samples of each rank in a second; at LINE so many of the late one's, and so many of the others'."""
    return [
        stacks(rank, second, samples, collate=at, train=samples - at)
        for rank in ranks
        for at in [own if rank == LATE else others]
    ]


CAUSES = {
    "late_launch": {},
    "data_loading": {"loading_ns": of_late(21 * MS)},
    "garbage_collection": {"full_collections": of_late(1)},
    "busy_cpu": {"delayed_ns": of_late(20 * MS)},
}


def about_late(evidence):
    [found] = [each for each in find(evidence) if each.ranks == (LATE,)]
    return found


TOO_LITTLE = {
    "too few": sampled(samples=7),
    "of no other rank": sampled(ranks=[LATE]),
    "of others only": sampled(ranks=OTHERS),
    "by chance": sampled(own=2, others=0),
    "of before": sampled(second=-1),
}


@pytest.mark.parametrize("what", TOO_LITTLE)
def test_no_line_is_told_from_too_little(what):
    assert slow_line(job(IDLES, *TOO_LITTLE[what]), LATE, OTHERS) is None


def test_shares_are_of_all_seconds_since_the_first_step():
    facts = [*sampled(second=-5, own=10), *sampled(second=8, own=2), *sampled(second=9, own=8)]
    assert slow_line(job(IDLES, *facts), LATE, OTHERS).share == 0.5


def test_line_at_which_all_ranks_are_is_not_the_one():
    own = [stacks(rank, 9, 30, train=21) for rank in OTHERS]
    line = slow_line(job(IDLES, *own, stacks(LATE, 9, 30, train=15, collate=9)), LATE, OTHERS)
    assert line.line == "train.py:2 in collate"


WITHOUT_A_LINE = {"busy_cpu", "garbage_collection"}
"""A thread waits for a CPU anywhere, and its stack cannot be sampled while it collects garbage."""


@pytest.mark.parametrize("rule", CAUSES)
def test_finding_about_a_late_host_names_the_line(rule):
    found = about_late(job(IDLES, *sampled(), **CAUSES[rule]))
    line = "" if rule in WITHOUT_A_LINE else LINE
    assert (found.rule, found.line, found.record("a").line) == (rule, line, line or None)
    assert found.measured.endswith("; train.py:1 in collate: 70 % of rank 1's step") == bool(line)
    assert why_late([found], LATE).endswith(f" ({LINE})") == bool(line)


@pytest.mark.parametrize(
    ("facts", "begins"), [(sampled(), "look at train.py:1: "), ([], "py-spy dump --pid 1001 ")]
)
def test_line_that_is_not_known_is_found_by_py_spy(facts, begins):
    assert about_late(job(IDLES, *facts)).advice.startswith(begins)


def test_compute_without_a_gpu_names_no_line_where_it_sleeps():
    """Its share of samples there is larger than the others', who wait in torch instead."""
    samples = [
        stacks(rank, second, 20, asleep=sleeps, forward=sleeps, busy=busy)
        for second in range(10)
        for rank in range(RANKS)
        for sleeps, busy in [(12, 5) if rank == LATE else (6, 1)]
    ]
    found = about_late(job(late(("compute", 20)), *HOST, *samples, cpu_ns=of_late(78 * MS, 58 * MS)))
    assert (found.rule, found.line) == ("slow_compute", "train.py:2 in busy")


def test_where_nothing_else_explains_a_late_rank_the_line_does():
    unseen = {f"{name}_ns": lambda rank, number: None for name in ("compute", "idle")}
    found = the(job(IDLES, *sampled(), steps=14, exact=False, **unseen), "late_unexplained")
    assert found.title == "rank 1 is at train.py:1 in collate for 70 % of its step, the others for 10 %"
    assert found.advice == "look at train.py:1"
    assert why_late([found], LATE) == found.title.replace("rank 1", "it", 1), "the line once"


def idle_at_first(loading_ns, *facts):
    return timelines(
        lambda *_: Timeline(100, ((40, 90),), (call("allreduce_", 90, 100),)),
        *facts,
        told=lambda totals, detail: (replace(totals, loading_ns=loading_ns), detail),
    )


AT_LINE = sampled(own=5, others=4, ranks=range(2))


def test_job_without_a_dataloader_is_told_the_line_instead():
    evidence = idle_at_first(0, *AT_LINE)
    assert "data_loading" not in {each.rule for each in find(evidence)}
    found = the(evidence, "stalled_hosts")
    assert (found.ranks, found.line, found.gain_ns) == ((), LINE, 40 * MS)
    assert "train.py:1 in collate: 40 % of each rank's step" in found.measured


@pytest.mark.parametrize(
    ("loading_ns", "facts", "begins"),
    [(0, [], "make batches while the GPU works"), (MS, AT_LINE, "where batches come from a DataLoader")],
)
def test_idle_starts_are_told_where_batches_may_come_from(loading_ns, facts, begins):
    assert the(idle_at_first(loading_ns, *facts), "data_loading").advice.startswith(begins)
