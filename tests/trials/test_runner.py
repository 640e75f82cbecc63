"""Trials on a job that runs: what they send, which steps they compare, how they end."""

import pytest
from msgspec import structs

from overlaptop.fleet.snapshot import HubState
from overlaptop.trials.runner import WARM_UP_STEPS
from overlaptop.trials.settings import try_values, verdict
from overlaptop.trials.slack import delay_ranks
from overlaptop.trials.slack import verdict as slack_verdict
from overlaptop.wire.commands import HOST, argument
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import BUCKET_CAP_MB, MS

from .live_job import TICK_S, LiveJob, valley

OTHER = Knob("accumulation", 1, "1", "1", 1, 8)
VALUES = (5, 12, 60, 200)


def run(trials, job, until=lambda state: False, most_s=3600.0):
    for _ in range(round(most_s / TICK_S)):
        trials.tick(job.tick())
        if trials.over or until(trials.state):
            return trials.state
    raise AssertionError(trials.state.doing)


def trying(job, values=VALUES, **options):
    return try_values(job, job.tick().knobs[0], values, **options)


def sent(number):
    return lambda job: lambda state: len(job.sent) == number


def test_each_difference_is_found_within_its_interval():
    job = LiveJob()
    state = run(trying(job), job)
    assert (state.why, state.failed) == ("", False)
    for each in state.tried:
        truth = job.step_ms(each.candidate.key) / job.step_ms(25) - 1
        assert each.effect.low <= truth <= each.effect.high
    assert [verdict(each) for each in state.tried] == ["longer", "longer", "shorter", "longer"]
    assert state.present_ns == pytest.approx(job.step_ms(25) * MS, rel=0.01)
    # They came one at a time, in changing order.
    order = [argument(command, "value") for command in job.sent]
    rounds = [tuple(order[at : at + len(VALUES)]) for at in range(0, 16, len(VALUES))]
    assert all(sorted(each) == sorted(VALUES) for each in rounds)
    assert len(set(rounds)) > 1


def of_warm_up(job):
    usual_ms = job.step_ms
    job.step_ms = lambda value: usual_ms(value) * (3 if job._number < WARM_UP_STEPS else 1)


def of_a_capture(job):
    before = trying(job, (200,))
    run(before, job, lambda state: state.tried[0].effect is not None)
    job.capture(30)


@pytest.mark.parametrize("disturb", [of_warm_up, of_a_capture])
def test_disturbed_steps_are_left_out(disturb):
    job = LiveJob()
    disturb(job)
    state = run(trying(job, (200,)), job)
    assert not state.failed
    assert state.present_ns == pytest.approx(valley(60)(25) * MS, rel=0.01)


def test_stopped_they_leave_nothing_to_undo():
    job = LiveJob()
    trials = trying(job)
    run(trials, job, sent(3)(job))
    trials.stop()
    assert trials.over
    for _ in range(100):
        job.tick()
    assert (len(job.sent), job.value, job.values[-1]) == (3, 25, 25)


@pytest.mark.parametrize(("values", "pairs", "refused"), [(VALUES, 0, 1), ((50,), 2, 0)])
def test_only_a_value_that_ranks_refuse_at_first_is_left_out(values, pairs, refused):
    job = LiveJob()
    trials = trying(job, values)
    run(trials, job, lambda state: len(state.tried[0].pairs) == pairs)
    job.refuses = "its model is compiled"
    run(trials, job, sent(len(job.sent) + 1)(job))
    job.refuses = ""
    state = run(trials, job)
    assert (sum(bool(each.refused) for each in state.tried), state.failed) == (refused, False)


def test_delays_that_add_up_to_too_much_are_refused():
    job = LiveJob(lambda _value: 50.0)
    state = run(delay_ranks(job, (0,), 9_000 * MS, HOST), job)
    assert state.tried[0].refused.startswith("the delays of all steps must be ")
    assert job.sent == []


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (lambda job: setattr(job, "busy", 10_000), "another command is under way"),
        (lambda job: setattr(job, "fails", "rank 1 does not answer"), "rank 1 does not answer"),
        (lambda job: setattr(job, "doubts", True), "not known whether the trial was made: "),
        (lambda job: job.person_sets(2, OTHER), "somebody else changed the job: set "),
        (lambda job: job.fleet.set_hub_state(HubState.LOST), "the connection to the job broke and did not"),
        (lambda job: job.end(), "the job ended"),
    ],
)
def test_what_makes_trials_worthless_ends_them(breaks, why):
    job = LiveJob()
    trials = trying(job)
    run(trials, job, sent(2)(job))
    breaks(job)
    state = run(trials, job, most_s=300)
    assert state.failed
    assert why in state.why
    assert (len(job.sent) > 5) == (why.startswith(("another", "rank 1"))), "asked again"


def lose_connection(job, trials):
    job.fleet.set_hub_state(HubState.LOST)
    for _ in range(20):
        trials.tick(job.tick())
    assert trials.state.doing == "waits: there is no connection to the job"
    job.fleet.set_hub_state(HubState.LIVE)


@pytest.mark.parametrize("disturb", [lose_connection, lambda job, trials: setattr(job, "busy", 3)])
def test_a_busy_job_or_a_broken_connection_is_waited_for(disturb):
    job = LiveJob()
    trials = trying(job, (200,))
    run(trials, job, sent(2)(job))
    disturb(job, trials)
    assert not run(trials, job).failed


def test_knob_that_changes_the_work_of_a_step_cannot_be_tried():
    job = LiveJob(knob=structs.replace(BUCKET_CAP_MB, changes_work=True))
    with pytest.raises(ValueError, match="another amount of work"):
        trying(job)


@pytest.mark.parametrize(
    ("critical", "verdicts"), [({1: 1.0}, ["slack", "critical"]), ({0: 0.5}, ["partly critical", "slack"])]
)
def test_slopes_of_critical_and_slack_ranks_are_found(critical, verdicts):
    job = LiveJob(lambda _value: 50.0, critical=critical)
    job.tick()
    state = run(delay_ranks(job, (0, 1), 5 * MS, HOST, budget_steps=6000), job)
    assert [slack_verdict(each) for each in state.tried] == verdicts
    for each in state.tried:
        assert each.effect.low <= critical.get(each.candidate.key, 0.0) <= each.effect.high
    assert {delay for _, delay in job.delays} == {5 * MS}
