"""The one thing that costs most: who is late, or what was found besides; and what bounds the step."""

from dataclasses import replace

import pytest

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.first_line import bound_by, first_line, most_urgent
from overlaptop.report.who_is_late import FirstLine, Kind, overlap_line, who_is_late
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import MS, T0, info
from tests.tui.fakes import running_job
from tests.tui.waits import waiting_job

TITLE = "ranks load data for 58.0 ms a step"


def found(gain_ms, rule="data_loading", why_late=False, **changes):
    gain_ns = gain_ms and gain_ms * MS
    made = Finding(TITLE, "", "", Certainty.MEASURED, gain_ns, rule=rule, why_late=why_late)
    return replace(made, **changes)


def late_in_most(number):
    """Rank 2 is late in five of six steps."""
    return 1 if number == 4 else 2


NOBODY_LATE = waiting_job(late_in_most, late_ms=0).tick()
LATE = waiting_job(late_in_most, late_ms=16).tick()


@pytest.mark.parametrize(
    ("snapshot", "first", "is_said"),
    [
        (NOBODY_LATE, [found(40)], True),
        (NOBODY_LATE, [found(1)], False),
        (NOBODY_LATE, [found(None)], False),
        (LATE, [found(40)], True),
        (LATE, [found(10)], False),
        (NOBODY_LATE, [found(40, rule="late_unexplained")], False),
        (NOBODY_LATE, [found(40, rule="jitter")], True),
        (LATE, [found(40, rule="jitter")], False),
        (NOBODY_LATE, [found(40, rule="bucket_too_large")], False),
    ],
)
def test_finding_that_costs_more_than_waiting_is_the_first_line(snapshot, first, is_said):
    said = first_line(snapshot, first)
    if not is_said:
        assert said == who_is_late(snapshot)
        return
    wins = f"{TITLE}; fixing it wins up to 50 %"
    assert said.forms[:2] == (f"{wins} of the step (measured)", wins)
    assert said.forms[-1] == TITLE
    assert (said.warns, said.late_rank) == (True, None)


def test_that_nobody_is_late_is_not_said_beside_a_late_rank():
    assert "No rank is clearly late" in first_line(NOBODY_LATE, [], [found(40)]).words
    assert first_line(NOBODY_LATE, [], [found(40, why_late=True)]) == overlap_line(NOBODY_LATE)


@pytest.mark.parametrize(
    ("present", "verdict"), [((), "Nothing to fix"), ((found(1),), "No rank is clearly late")]
)
def test_the_verdict_comes_first_in_shorter_forms(present, verdict):
    full, *shorter = first_line(running_job(1).tick(), present).forms
    assert full.endswith(f"2.00 ms of 72.0 ms (3 %) is not. {verdict}.")
    assert shorter[0] == f"{verdict}; 2.00 ms of 72.0 ms (3 %) is exposed"
    assert shorter[-2:] == [f"{verdict}; 3 % exposed", verdict]


def test_hidden_communication_has_the_sign_of_the_totals():
    job = waiting_job(late_ms=1)
    job.say(*(info(rank, exact=False) for rank in range(4)))
    assert who_is_late(job.tick()).words.startswith("≤50 % of communication is hidden; 19.8 ms of 80.0 ms")


def test_possible_cause_raises_no_alarm():
    said = first_line(NOBODY_LATE, [found(40, certainty=Certainty.POSSIBLE)])
    assert (said.words.endswith("(possible)"), said.warns) == (True, False)


@pytest.mark.parametrize(("share", "kind"), [(0.9, Kind.FINDING), (0.6, Kind.LATE)])
def test_shown_finding_stays_until_it_gains_clearly_less(share, kind):
    near = found(1, gain_ns=round(share * LATE.wait_window.exposed_wait_ns))
    assert first_line(LATE, [near]).kind is Kind.LATE
    assert first_line(LATE, [near], shown=near.rule).kind is kind


def test_rank_that_is_late_in_nearly_all_collectives_is_named_first():
    assert first_line(waiting_job().tick(), [found(40)]).late_rank == 2


def test_a_rank_that_is_late_by_its_counters_alone_is_named():
    late = found(20, why_late=True, title="rank 1 waits 30.0 ms a step longer", ranks=(1,))
    said = first_line(NOBODY_LATE, [late])
    assert (said.kind, said.late_rank, said.words) == (Kind.LATE, 1, f"{late.title}, measured")
    assert first_line(NOBODY_LATE, [replace(late, gain_ns=MS)]).kind is not Kind.LATE


def test_slack_is_said_and_blames_nobody():
    brief = "rank 3 trails by 12.0 ms, which costs nothing"
    slack = found(0, "slack", title=f"{brief}: the CPU needs 15.0 ms a step on all ranks", ranks=(3,))
    snapshot = waiting_job(late_ms=16).tick()
    said = first_line(snapshot, [slack])
    assert (said.words, said.brief) == (slack.title, brief)
    assert (said.kind, said.warns, said.late_rank) == (Kind.SLACK, False, None)
    assert first_line(snapshot, [found(10), slack]).rule == "data_loading"


def test_lines_of_a_failed_job_are_about_the_steps_before():
    job = running_job(2)
    job.say(RankEnd(0, T0 + 1, True, "ValueError: boom"))
    said = first_line(job.tick(), [found(20, why_late=True, ranks=(1,))])
    assert (said.words, said.warns) == (f"until then: {TITLE}, measured", False)
    assert all(form.startswith("until then: ") for form in said.forms)
    assert first_line(job.tick(), ()) is None


def test_most_urgent_finding_is_the_one_of_the_first_line():
    line = who_is_late(waiting_job().tick())._replace(cause_rule="slow_compute")
    other, late = found(40, rule="short_cpus"), found(20, "slow_compute", why_late=True, ranks=(2,))
    assert most_urgent([other, late], line) is late
    assert most_urgent([other, replace(late, ranks=(1,))], line) is other
    assert most_urgent([other, late], None) is other


SAID = FirstLine("", "")
SLACK = SAID._replace(kind=Kind.SLACK)


@pytest.mark.parametrize(
    ("figures", "said", "first", "word"),
    [
        ({}, SAID, (), "GPU-bound"),
        ({"exposed_ns": 60 * MS}, SAID, (), "communication-bound"),
        ({"idle_ns": 60 * MS}, SAID, (), "host-bound"),
        ({"exposed_ns": 40 * MS, "idle_ns": 40 * MS}, SAID, (), ""),
        ({"exposed_ns": None}, SAID, (), ""),
        ({}, SAID._replace(late_rank=2), (), "waiting for rank 2"),
        ({"launch_bound": (1,)}, SLACK, (), "host-bound"),
        ({}, SAID, (found(40),), "data-bound"),
    ],
)
def test_the_part_that_takes_most_of_the_step_bounds_it(figures, said, first, word):
    known = {"measured_ns": 100 * MS, "exposed_ns": 10 * MS, "idle_ns": 10 * MS, "launch_bound": ()}
    totals = replace(LATE.totals, **(known | figures))
    assert bound_by(replace(LATE, totals=totals, wait_window=None), first, said) == word
