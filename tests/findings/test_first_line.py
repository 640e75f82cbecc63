"""The one thing that costs most: who is late, or what was found besides."""

from dataclasses import replace

import pytest

from overlaptop.findings.finding import Certainty, Finding
from overlaptop.findings.first_line import first_line, most_urgent
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.wait_breakdown import WaitBreakdown
from overlaptop.report.who_is_late import Kind, overlap_line, who_is_late
from overlaptop.wire.messages import RankEnd
from tests.fleet.builders import MS, T0, Clock, feed, info, step, unmeasured, welcome
from tests.tui.fakes import running_job
from tests.tui.waits import waiting_job

TITLE = "ranks load data for 58.0 ms a step"


def found(gain_ms, rule="data_loading", why_late=False):
    gain_ns = gain_ms and gain_ms * MS
    return Finding(TITLE, "", "", Certainty.MEASURED, gain_ns, rule=rule, why_late=why_late)


def late_in_most(number):
    """Rank 2 is late in five of six steps."""
    return 1 if number == 4 else 2


@pytest.mark.parametrize(
    ("late_ms", "first", "is_said"),
    [
        (16, None, False),
        (0, found(40), True),
        (0, found(1), False),
        (0, found(None), False),
        (16, found(40), True),
        (16, found(10), False),
        (16, found(40, why_late=True), False),
        (16, found(40, rule="late_unexplained"), False),
        (0, found(40, rule="late_unexplained"), False),
        (0, found(40, rule="jitter"), True),
        (16, found(40, rule="jitter"), False),
        (0, found(40, rule="bucket_too_large"), False),
    ],
)
def test_finding_that_costs_more_than_waiting_is_the_first_line(late_ms, first, is_said):
    snapshot = waiting_job(late_in_most, late_ms=late_ms).tick()
    said = first_line(snapshot, [first] if first else [])
    if not is_said:
        assert said == who_is_late(snapshot)
        return
    assert said.words == f"{TITLE}; fixing it wins up to 50 % of the step (measured)"
    assert said.forms[-1] == TITLE
    assert (said.warns, said.late_rank) == (True, None)


def test_that_nobody_is_late_is_not_said_beside_a_finding_about_a_late_rank():
    snapshot = waiting_job(late_in_most, late_ms=0).tick()
    assert "No rank is clearly late" in first_line(snapshot, [], [found(40)]).words
    assert first_line(snapshot, [], [found(40, why_late=True)]) == overlap_line(snapshot)


def test_exposed_share_is_that_of_the_measured_steps():
    """Few are measured, and longer than the rest: 10 ms of 80 are exposed, not of 42."""
    fleet = JobState(Clock())
    steps = [
        unmeasured(number=number, ms=40) if number % 16 else step(number=number) for number in range(96)
    ]
    snapshot = feed(fleet, welcome(world_size=1), info(), *steps)
    snapshot = WaitBreakdown().break_down(snapshot)
    assert snapshot.totals.step_ns < 45 * MS
    words = "67 % of communication is hidden; 10.0 ms of 80.0 ms (12 %) is not."
    assert overlap_line(snapshot).words == words


def test_the_gain_stays_in_shorter_forms_before_the_reason():
    title = "each rank waits 40.0 ms a step for a CPU: 4 ranks share 2 CPUs"
    said = first_line(waiting_job(late_ms=0).tick(), [replace(found(40), title=title)])
    assert said.forms == (
        f"{title}; fixing it wins up to 50 % of the step (measured)",
        f"{title}; fixing it wins up to 50 %",
        f"{title}; fixing it wins up to 50 %",
        "each rank waits 40.0 ms a step for a CPU; fixing it wins up to 50 %",
        title,
        "each rank waits 40.0 ms a step for a CPU",
    )


def test_the_verdict_comes_first_in_shorter_forms_and_agrees_with_findings():
    healthy, small = running_job(1).tick(), found(1)
    for present, listed, verdict in (
        ((), (), "Nothing to fix"),
        ((small,), (), "No rank is clearly late"),
        ((), (small,), "No rank is clearly late"),
    ):
        full, *shorter = first_line(healthy, present, listed).forms
        assert full.endswith(f"2.00 ms of 72.0 ms (3 %) is not. {verdict}.")
        assert shorter[0] == f"{verdict}; 2.00 ms of 72.0 ms (3 %) is exposed"
        assert shorter[-2:] == [f"{verdict}; 3 % exposed", verdict]


def test_hidden_communication_has_the_sign_of_the_totals():
    job = waiting_job(late_ms=1)
    job.say(*(info(rank, exact=False) for rank in range(4)))
    assert who_is_late(job.tick()).words.startswith("≤50 % of communication is hidden; 19.8 ms of 80.0 ms")


def test_possible_cause_raises_no_alarm():
    possible = replace(found(40), certainty=Certainty.POSSIBLE)
    said = first_line(waiting_job(late_ms=0).tick(), [possible])
    assert said.words.endswith("(possible)")
    assert not said.warns


def test_shown_finding_stays_until_it_gains_clearly_less():
    snapshot = waiting_job(late_in_most, late_ms=16).tick()
    wait_ns = snapshot.wait_window.exposed_wait_ns
    for share, stays in ((0.9, True), (0.6, False)):
        near = replace(found(1), gain_ns=round(share * wait_ns))
        assert first_line(snapshot, [near]).kind is Kind.LATE
        assert (first_line(snapshot, [near], shown=near.rule).kind is Kind.FINDING) == stays


def test_rank_that_is_late_in_nearly_all_collectives_is_named_first():
    assert first_line(waiting_job().tick(), [found(40)]).late_rank == 2


def test_a_rank_that_is_late_by_its_counters_alone_is_named():
    snapshot = waiting_job(late_ms=0).tick()
    late = replace(found(20, why_late=True), title="rank 1 waits 30.0 ms a step longer", ranks=(1,))
    said = first_line(snapshot, [late])
    assert (said.kind, said.late_rank, said.words) == (Kind.LATE, 1, f"{late.title}, measured")
    assert first_line(snapshot, [replace(late, gain_ns=MS)]).kind is not Kind.LATE


def test_slack_is_said_and_blames_nobody():
    title = "rank 3 trails by 12.0 ms, which costs nothing: the CPU needs 15.0 ms a step on all ranks"
    slack = Finding(title, "", "", Certainty.LIKELY, 0, (3,), rule="slack")
    snapshot = waiting_job(late_ms=16).tick()
    said = first_line(snapshot, [slack])
    assert (said.words, said.brief) == (title, "rank 3 trails by 12.0 ms, which costs nothing")
    assert (said.kind, said.warns, said.late_rank) == (Kind.SLACK, False, None)
    assert first_line(snapshot, [found(10), slack]).rule == "data_loading"


def test_lines_of_a_failed_job_are_about_the_steps_before():
    session, late = waiting_job(late_ms=0), replace(found(20, why_late=True), ranks=(1,))
    unknown = running_job(2)
    for job in (session, unknown):
        job.say(RankEnd(0, T0 + 1, True, "ValueError: boom"))
    assert first_line(session.tick(), ()).words.startswith("until then: ")
    said = first_line(unknown.tick(), [late])
    assert (said.words, said.warns) == (f"until then: {TITLE}, measured", False)
    assert all(form.startswith("until then: ") for form in said.forms)
    assert first_line(unknown.tick(), ()) is None


def test_most_urgent_finding_is_the_one_of_the_first_line():
    line = who_is_late(waiting_job().tick())
    other = found(40, rule="short_cpus")
    late = replace(found(20, rule="slow_compute", why_late=True), ranks=(2,))
    assert most_urgent([other, late], line._replace(cause_rule="slow_compute")) is late
    assert (
        most_urgent([other, replace(late, ranks=(1,))], line._replace(cause_rule="slow_compute")) is other
    )
    assert most_urgent([other, late], None) is other
    assert most_urgent([], line) is None
