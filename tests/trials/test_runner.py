"""Trials on a job that runs: what they send, which steps they compare, how they end."""

from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.fleet.snapshot import HubState
from overlaptop.trials.runner import WARM_UP_STEPS
from overlaptop.trials.settings import best_of, try_values, verdict
from overlaptop.trials.slack import delay_ranks
from overlaptop.trials.slack import verdict as slack_verdict
from overlaptop.wire.commands import HOST, TRIAL, argument
from overlaptop.wire.knobs import Knob
from tests.fleet.builders import MS

from .live_job import TICK_S, LiveJob, valley

OTHER = Knob("accumulation", 1, "1", "1", 1, 8)
CODE = "DDP(model, bucket_cap_mb={value})"
VALUES = (5, 12, 60, 200)


def run(trials, job, until=lambda state: False, most_s=3600.0):
    for _ in range(round(most_s / TICK_S)):
        trials.tick(job.tick())
        if trials.over or until(trials.state):
            return trials.state
    raise AssertionError(trials.state.doing)


def trying(job, values=VALUES, **options):
    return try_values(job, job.tick().knobs[0], values, **options)


def truth(job, value):
    return job.step_ms(value) / job.step_ms(25) - 1


def test_each_difference_is_found_within_its_interval():
    job = LiveJob()
    state = run(trying(job), job)
    assert (state.why, state.failed) == ("", False)
    for each in state.tried:
        assert each.effect.low <= truth(job, each.candidate.key) <= each.effect.high
    assert [verdict(each) for each in state.tried] == ["longer", "longer", "shorter", "longer"]
    assert state.present_ns == pytest.approx(job.step_ms(25) * MS, rel=0.01)
    # They came one at a time, in changing order.
    assert {command.name for command in job.sent} == {TRIAL}
    order = [argument(command, "value") for command in job.sent]
    rounds = [tuple(order[at : at + len(VALUES)]) for at in range(0, 16, len(VALUES))]
    assert all(sorted(each) == sorted(VALUES) for each in rounds)
    assert len(set(rounds)) > 1


def test_values_alike_are_known_to_make_no_difference():
    job = LiveJob(lambda _value: 100.0)
    state = run(trying(job, (50, 100)), job)
    assert {verdict(each) for each in state.tried} == {"no difference"}
    assert best_of(job.knob, state).line == "bucket_cap_mb 25 MiB: no value tried is shorter"


def test_steps_of_the_warm_up_stand_for_nothing():
    job = LiveJob()
    usual_ms = job.step_ms
    job.step_ms = lambda value: usual_ms(value) * (3 if job._number < WARM_UP_STEPS else 1)
    state = run(trying(job, (200,)), job)
    assert state.present_ns == pytest.approx(usual_ms(25) * MS, rel=0.01)


def test_a_drift_of_the_machine_is_no_difference():
    job = LiveJob(lambda _value: 100 + job._number / 50 if job else 100)
    state = run(trying(job, (50,)), job)
    assert verdict(state.tried[0]) == "no difference"


def test_captured_steps_are_left_out():
    job = LiveJob()
    trials = trying(job, (200,))
    run(trials, job, lambda state: state.tried[0].effect is not None)
    job.capture(30)
    state = run(trials, job)
    assert state.present_ns == pytest.approx(job.step_ms(25) * MS, rel=0.01)


def test_short_steps_are_tried_for_longer():
    job = LiveJob(lambda value: valley(60)(value) / 50)
    run(trying(job, (200,)), job, lambda state: bool(job.sent))
    assert argument(job.sent[0], "steps") > 200


def test_budget_ends_them_with_what_is_known():
    job = LiveJob(noise=0.2)
    state = run(trying(job, budget_steps=300), job)
    assert (state.why, state.failed) == ("the budget of 300 steps is used up", False)
    assert 200 < state.spent_steps <= 300


def test_stopped_they_leave_nothing_to_undo():
    job = LiveJob()
    trials = trying(job)
    run(trials, job, lambda state: len(job.sent) == 3)
    trials.stop()
    assert trials.over
    for _ in range(100):
        job.tick()
    assert (len(job.sent), job.value, job.values[-1]) == (3, 25, 25)


def test_a_busy_job_is_asked_again():
    job = LiveJob()
    job.busy = 3
    state = run(trying(job, (200,)), job)
    assert not state.failed


def test_a_value_that_ranks_refuse_leaves_the_others():
    job = LiveJob()
    job.refuses = "its model is compiled"
    trials = trying(job)
    run(trials, job, lambda state: bool(job.sent))
    job.refuses = ""
    state = run(trials, job)
    assert sorted(bool(each.refused) for each in state.tried) == [False, False, False, True]
    assert not state.failed


def test_a_value_that_was_tried_before_outlives_a_refusal():
    job = LiveJob()
    trials = trying(job, (50,))
    run(trials, job, lambda state: len(state.tried[0].pairs) == 2)
    job.refuses = "it came 12 s late"
    run(trials, job, lambda state: len(job.sent) == 3)
    job.refuses = ""
    state = run(trials, job)
    assert (state.tried[0].refused, state.failed) == ("", False)


def test_delays_that_add_up_to_too_much_are_refused():
    job = LiveJob(lambda _value: 50.0)
    state = run(delay_ranks(job, (0,), 9_000 * MS, HOST), job)
    assert state.tried[0].refused.startswith("the delays of all steps must be ")
    assert job.sent == []


def test_trials_that_fail_again_and_again_are_given_up():
    job = LiveJob()
    job.fails = "rank 1 does not answer"
    state = run(trying(job), job)
    assert (state.failed, state.why) == (True, "rank 1 does not answer")
    assert len(job.sent) > 2


@pytest.mark.parametrize(
    ("breaks", "why"),
    [
        (lambda job: setattr(job, "busy", 10_000), "another command is under way"),
        (lambda job: setattr(job, "doubts", True), "not known whether the trial was made: "),
        (lambda job: job.person_sets(2), "somebody else changed the job: set "),
        (lambda job: job.person_sets(2, OTHER), "somebody else changed the job: set "),
        (lambda job: job.fleet.set_hub_state(HubState.LOST), "the connection to the job broke and did not"),
        (lambda job: job.end(), "the job ended"),
    ],
    ids=["stays busy", "in doubt", "another value", "another knob", "stays lost", "ends"],
)
def test_what_makes_trials_worthless_ends_them(breaks, why):
    job = LiveJob()
    trials = trying(job)
    run(trials, job, lambda state: len(job.sent) == 2)
    breaks(job)
    state = run(trials, job, most_s=300)
    assert state.failed
    assert why in state.why


def test_a_broken_connection_is_waited_for():
    job = LiveJob()
    trials = trying(job, (200,))
    run(trials, job, lambda state: len(job.sent) == 2)
    job.fleet.set_hub_state(HubState.LOST)
    for _ in range(20):
        trials.tick(job.tick())
    assert trials.state.doing == "waits: there is no connection to the job"
    job.fleet.set_hub_state(HubState.LIVE)
    assert not run(trials, job).failed


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((), "bucket_cap_mb is 25 MiB already: name others to try against it"),
        ((25,), "bucket_cap_mb is 25 MiB already: name others to try against it"),
        ((0,), "bucket_cap_mb must be from 1 to 10000, not 0"),
    ],
)
def test_values_that_cannot_be_tried_are_refused(values, why):
    with pytest.raises(ValueError, match=why):
        trying(LiveJob(), values)


def test_a_knob_that_changes_the_work_is_refused():
    held = LiveJob().tick().knobs[0]
    with pytest.raises(ValueError, match="does another amount of work"):
        try_values(LiveJob(), replace(held, knob=structs.replace(held.knob, changes_work=True)), (50,))


def test_slopes_of_critical_and_slack_ranks_are_found():
    job = LiveJob(lambda _value: 50.0, critical={1: 1.0})
    job.tick()
    state = run(delay_ranks(job, (0, 1), 5 * MS, HOST), job)
    assert [slack_verdict(each) for each in state.tried] == ["slack", "critical"]
    for each, true in zip(state.tried, (0.0, 1.0), strict=True):
        assert each.effect.low <= true <= each.effect.high
    assert {delay for _, delay in job.delays} == {5 * MS}


def test_a_rank_half_on_the_critical_path_is_partly_critical():
    job = LiveJob(lambda _value: 50.0, critical={0: 0.5})
    job.tick()
    state = run(delay_ranks(job, (0,), 5 * MS, HOST), job)
    assert slack_verdict(state.tried[0]) == "partly critical"


def test_a_delay_lost_in_noise_is_not_known():
    job = LiveJob(lambda _value: 50.0, critical={0: 1.0}, noise=0.3)
    job.tick()
    state = run(delay_ranks(job, (0,), MS, HOST, budget_steps=600), job)
    assert slack_verdict(state.tried[0]) == "not known"


def test_steps_of_an_earlier_trial_stand_for_nothing():
    job = LiveJob()
    first = trying(job, (1,))
    run(first, job, lambda state: job._under_way is not None and job.values[-1] == 1)
    first.stop()
    state = run(trying(job, (200,)), job)
    assert not state.failed
    assert state.present_ns == pytest.approx(job.step_ms(25) * MS, rel=0.01)
