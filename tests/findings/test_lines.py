"""The line of the script at which a late rank is for longer than the others."""

import pytest
from msgspec.structs import replace

from overlaptop.findings.find import find
from overlaptop.findings.finding import Finding, why_late
from overlaptop.findings.late import late_ranks
from overlaptop.findings.lines import slow_line
from tests.fleet.builders import MS, stacks

from . import timelines
from .jobs import RANKS, healthy, job
from .test_late_ranks import HOST
from .timelines import Timeline, call

LATE = 1
OTHERS = {0, 2, 3}
LINE = "train.py:1 in collate"


def late(*more):
    """As `healthy`, but one rank does more in each step."""
    return lambda rank, number: [*healthy(rank, number), *(more if rank == LATE else ())]


def sampled(second=9, own=7, others=1, samples=10, ranks=range(RANKS)):
    """Samples of each rank in a second; at LINE so many of the late one's, and so many of the others'."""
    return [
        stacks(rank, second, samples, collate=at, train=samples - at)
        for rank in ranks
        for at in [own if rank == LATE else others]
    ]


STANDS = late(("idle", 20))
CAUSES = {
    "late_launch": {},
    "data_loading": {"loading_ns": lambda rank, _: 21 * MS * (rank == LATE)},
    "garbage_collection": {"full_collections": lambda rank, _: int(rank == LATE)},
    "busy_cpu": {"delayed_ns": lambda rank, _: 20 * MS * (rank == LATE)},
}


def about_late(evidence):
    [found] = [each for each in find(evidence) if each.ranks == (LATE,)]
    return found


def test_line_is_told_with_its_share_of_the_ranks_step():
    line = slow_line(job(STANDS, *sampled()), LATE, OTHERS)
    assert line.describe == "train.py:1 in collate: 70 % of rank 1's step"
    assert (line.place, line.others_share) == ("train.py:1", 0.1)


@pytest.mark.parametrize(
    "facts",
    [
        [],
        sampled(samples=7),
        sampled(ranks=[LATE]),
        sampled(ranks=OTHERS),
        sampled(own=2, others=1),
        sampled(own=2, others=0),
        sampled(second=-5),
    ],
    ids=["none", "too few", "of no other rank", "of others only", "alike", "by chance", "of before"],
)
def test_no_line_is_told_from_too_little(facts):
    assert slow_line(job(STANDS, *facts), LATE, OTHERS) is None


def test_a_tenth_of_the_step_is_told_from_samples_enough():
    facts = [each for second in range(10) for each in sampled(second=second, own=1, others=0)]
    assert slow_line(job(STANDS, *facts), LATE, OTHERS).share == 0.1


def test_shares_are_of_all_seconds_since_the_first_step():
    facts = [*sampled(second=-5, own=10), *sampled(second=8, own=2), *sampled(second=9, own=8)]
    assert slow_line(job(STANDS, *facts), LATE, OTHERS).share == 0.5
    assert slow_line(job(STANDS, *sampled(second=-1)), LATE, OTHERS) is None


def test_line_at_which_all_ranks_are_is_not_the_one():
    def at(rank):
        own = {"collate": 9} if rank == LATE else {}
        return stacks(rank, 9, 30, train=21 - 6 * (rank == LATE), **own)

    line = slow_line(job(STANDS, *map(at, range(RANKS))), LATE, OTHERS)
    assert line.line == "train.py:2 in collate"


WITHOUT_A_LINE = {"busy_cpu", "garbage_collection"}
"""A thread waits for a CPU anywhere, and its stack cannot be sampled while it collects garbage."""


@pytest.mark.parametrize("rule", sorted(WITHOUT_A_LINE))
def test_where_samples_say_nothing_of_why_no_line_is_named(rule):
    found = about_late(job(STANDS, *sampled(), **CAUSES[rule]))
    assert (found.rule, found.line) == (rule, "")


@pytest.mark.parametrize("rule", sorted(CAUSES.keys() - WITHOUT_A_LINE))
def test_finding_about_a_late_host_names_the_line(rule):
    found = about_late(job(STANDS, *sampled(), **CAUSES[rule]))
    assert (found.rule, found.line) == (rule, LINE)
    assert found.measured.endswith("; train.py:1 in collate: 70 % of rank 1's step")
    assert found.record("a").line == LINE
    assert why_late([found], LATE).endswith(f" ({LINE})")
    without = about_late(job(STANDS, **CAUSES[rule]))
    assert (without.title, without.line, without.record("a").line) == (found.title, "", None)


def test_line_that_is_not_known_is_found_by_py_spy():
    known, unknown = (about_late(job(STANDS, *facts)).advice for facts in (sampled(), []))
    assert known.startswith("look at train.py:1: ")
    assert "py-spy" not in known
    assert unknown.startswith("py-spy dump --pid 1001 ")


def test_rank_that_computes_longer_names_no_line():
    evidence = job(late(("compute", 20)), *sampled())
    assert about_late(evidence).line == ""
    assert [each.line for each in late_ranks(evidence)] == [None]


def test_rank_without_a_gpu_that_computes_longer_is_told_no_line_where_it_sleeps():
    """Its share of samples there is larger than the others', who wait in torch instead."""
    samples = [
        stacks(rank, second, 20, asleep=sleeps, forward=sleeps, busy=busy)
        for second in range(10)
        for rank in range(RANKS)
        for sleeps, busy in [(12, 5) if rank == LATE else (6, 1)]
    ]
    cpu_ns = {"cpu_ns": lambda rank, _: (58 + 20 * (rank == LATE)) * MS}
    found = about_late(job(late(("compute", 20)), *HOST, *samples, **cpu_ns))
    assert (found.rule, found.line) == ("slow_compute", "train.py:2 in busy")


def test_where_nothing_else_explains_a_late_rank_the_line_does():
    unseen = {f"{name}_ns": lambda rank, number: None for name in ("compute", "idle")}
    evidence = job(STANDS, *sampled(), steps=14, exact=False, **unseen)
    [found] = [each for each in find(evidence) if each.rule == "late_unexplained"]
    assert found.title == "rank 1 is at train.py:1 in collate for 70 % of its step, the others for 10 %"
    assert found.advice == "look at train.py:1"
    assert why_late([found], LATE) == found.title.replace("rank 1", "it", 1), "the line once"


def test_line_is_in_the_headline_once():
    def of(title):
        return Finding(title, "", "", certainty=None, ranks=(LATE,), line=LINE, why_late=True).headline

    assert of("rank 1 stands") == f"rank 1 stands ({LINE})"
    assert of(f"rank 1 is at {LINE}") == f"rank 1 is at {LINE}"


def idle_at_first(rank, number):
    return Timeline(100, ((40, 90),), (call("allreduce_", 90, 100),))


def loads(loading_ns, *facts):
    evidence = timelines.job(
        idle_at_first, *facts, told=lambda totals, detail: (replace(totals, loading_ns=loading_ns), detail)
    )
    return [each.advice for each in find(evidence) if each.rule == "data_loading"]


def test_job_without_a_dataloader_is_told_the_line_instead():
    facts = sampled(own=5, others=4, ranks=range(2))
    assert loads(0, *facts) == []
    waits_for_the_gpu = sampled(own=9, others=9, ranks=range(2))
    assert loads(0, *waits_for_the_gpu) == ["make batches while the GPU works"]
    evidence = timelines.job(
        idle_at_first, *facts, told=lambda totals, detail: (replace(totals, loading_ns=0), detail)
    )
    [found] = [each for each in find(evidence) if each.rule == "stalled_hosts"]
    assert (found.ranks, found.line, found.gain_ns) == ((), LINE, 40 * MS)
    assert "train.py:1 in collate: 40 % of each rank's step" in found.measured
    assert loads(0) == ["make batches while the GPU works"]
    for loading_ns in (None, MS):
        [advice] = loads(loading_ns, *facts)
        assert advice.startswith("where batches come from a DataLoader")
