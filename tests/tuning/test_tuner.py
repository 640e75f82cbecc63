"""The search on a job that runs: what it sends, which steps it counts, how it ends."""

import math
from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.fleet.snapshot import HubState
from overlaptop.tuning.changer import BUSY_S, TRIES
from overlaptop.tuning.interference import LOST_S
from overlaptop.tuning.search import BestValue, SearchOptions
from overlaptop.tuning.state import caveat, make_result
from overlaptop.tuning.tuner import LEASE_WAIT_S, Tuner
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob
from overlaptop.wire.messages import Notice, RankEnd
from tests.fleet.builders import BUCKET_CAP_MB, MS, info, welcome
from tests.fleet.hub import sent

from .live_job import TICK_S, LiveJob, valley

OTHER = Knob("accumulation", 1, "1", "1", 1, 8)
BUCKET = structs.replace(BUCKET_CAP_MB, code="DistributedDataParallel(model, bucket_cap_mb={value})")
BACK = "the job has 25 MiB again, as before the search"


def run(tuner: Tuner, job: LiveJob, until=lambda state: False, most_s: float = 600.0) -> None:
    for _ in range(round(most_s / TICK_S)):
        tuner.tick(job.tick())
        if tuner.over or until(tuner.state):
            return
    raise AssertionError(tuner.state.doing)


def windows(count: int):
    return lambda state: len(state.windows) >= count


def searching(measured: int, job: LiveJob | None = None, **options) -> tuple[LiveJob, Tuner]:
    """A search that has measured so many windows."""
    job = job or LiveJob(valley(60), knob=BUCKET)
    tuner = Tuner(job, job.knob, **options)
    run(tuner, job, windows(measured))
    return job, tuner


def searched(job: LiveJob | None = None, **options) -> tuple[LiveJob, Tuner]:
    """A search that is over."""
    return searching(1_000_000, job, **options)


# What is found


def test_it_finds_the_best_value_says_so_with_the_code_to_paste_and_puts_the_old_one_back():
    job, tuner = searched()
    result, found = tuner.state.result, tuner.state.result.found
    assert (tuner.state.failed, found.known) == (False, True)
    assert valley(60)(found.value) < 100.5
    assert found.saves_low < 1 - valley(60)(found.value) / valley(60)(25) < found.saves_high
    assert result.line.startswith(f"bucket_cap_mb {found.value} MiB: a step ")
    assert result.code == f"DistributedDataParallel(model, bucket_cap_mb={found.value})"
    assert (job.value, sent(job)[-1], tuner.state.left) == (25, "restore bucket_cap_mb", BACK)
    assert {command.search for command in job.sent} == {tuner.lease.id}
    assert job.held[0] == tuner.lease
    assert [search for search in job.held if search.over] == [structs.replace(tuner.lease, over=True)]
    assert job.held[-1].over


def test_steps_of_the_warm_up_say_nothing_of_the_value_that_the_job_had():
    job = LiveJob(valley(60), knob=BUCKET)
    usual_ms = job.step_ms
    job.step_ms = lambda value: usual_ms(value) * (3 if job._number < 20 else 1)
    _, tuner = searched(job)
    assert all(window.first_step >= 20 for window in tuner.state.windows)
    before = next(point for point in tuner.state.points if point.value == 25)
    assert before.step_ns == pytest.approx(valley(60)(25) * MS, rel=0.02)


def test_it_leaves_the_best_value_where_that_is_wished_and_the_value_before_where_none_is_better():
    job, tuner = searched(keep=True)
    assert job.value == tuner.state.result.found.value != 25
    assert "restore bucket_cap_mb" not in sent(job)
    assert tuner.state.left == f"the job has {job.value} MiB now"
    job, tuner = searched(LiveJob(valley(25), noise=0.002), keep=True)
    result = tuner.state.result
    assert (result.found.value, result.found.saves) == (25, 0.0)
    assert "bucket_cap_mb 25 MiB, as it was: no other measured value is shorter" in result.line
    assert (job.value, tuner.state.left) == (25, BACK)


def test_a_value_that_was_set_before_is_set_again_not_restored():
    job, _ = searched(LiveJob(valley(60), knob=structs.replace(BUCKET_CAP_MB, value=40, value_text="40")))
    assert (job.value, sent(job)[-1]) == (40, "set bucket_cap_mb 40")


def test_where_the_script_gave_no_whole_number_the_one_beside_it_is_measured_and_named():
    knob = structs.replace(BUCKET_CAP_MB, value=None, value_text="25.4", original_text="25.4")
    job, tuner = searched(LiveJob(lambda value: valley(60)(value or 25.4), knob=knob))
    assert (sent(job)[0], sent(job)[-1]) == ("set bucket_cap_mb 25", "restore bucket_cap_mb")
    assert job.value is None
    assert "shorter than with 25 MiB (" in tuner.state.result.line


WELL = BestValue(
    value=60, before=25, known=True, spent=False, saves=0.031, saves_low=0.024, saves_high=0.038,
    rivals_gain=0.005,
)  # fmt: skip
ONCE = {"known": False, "saves_low": -math.inf, "saves_high": math.inf, "once": True}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            {},
            "bucket_cap_mb 60 MiB: a step 3.1 % shorter than with 25 MiB (2.4 to 3.8 %); no other measured "
            "value is shorter by more than 0.5 %, with 95 % confidence",
        ),
        (
            {"saves": 0.001, "saves_low": -0.002, "saves_high": 0.004},
            "bucket_cap_mb 60 MiB: not shorter than with 25 MiB beyond noise (-0.2 to 0.4 %); no other "
            "measured value is shorter by more than 0.5 %, with 95 % confidence",
        ),
        (
            {"known": False, "spent": True, "rivals_gain": 0.022},
            "bucket_cap_mb 60 MiB, the best so far: a step 3.1 % shorter than with 25 MiB (2.4 to 3.8 %); "
            "another measured value may still be up to 2.2 % shorter, with 95 % confidence. The search had "
            "spent its steps before the best was known",
        ),
        (
            {"value": 25, "known": False, "rivals_gain": None},
            "bucket_cap_mb 25 MiB, as it was, the best so far: whether another value is shorter is not "
            "known. The search ended before the best was known",
        ),
        (
            {**ONCE, "all_once": True},
            "bucket_cap_mb 60 MiB, a first guess (each value was measured once only): whether a step is "
            "shorter than with 25 MiB is not known; another measured value may still be up to 0.5 % shorter"
            ", with 95 % confidence. The search ended before the best was known",
        ),
        (
            {**ONCE, "rivals_gain": None},
            "bucket_cap_mb 60 MiB, a first guess (it was measured once only): whether a step is shorter "
            "than with 25 MiB is not known; whether another value is shorter is not known. The search "
            "ended before the best was known",
        ),
    ],
)
def test_the_last_line_says_no_more_than_is_known(found, line):
    assert make_result(BUCKET_CAP_MB, replace(WELL, **found)).line == line


def test_neither_the_last_line_nor_the_code_calls_a_value_something_that_it_is_not():
    own_lists = structs.replace(OTHER, value=None, value_text="own lists")
    line = make_result(own_lists, replace(WELL, value=1, before=1)).line
    assert line.startswith("accumulation 1, measured in place of own lists: no other measured value ")
    as_it_was = replace(WELL, value=25)
    assert make_result(BUCKET, as_it_was).code == ""  # the script has it
    for doubtful in ({"saves_low": -0.291, "saves_high": 0.345}, ONCE):
        assert make_result(BUCKET, replace(WELL, **doubtful)).code == ""
    assert make_result(structs.replace(BUCKET, original_text="10"), as_it_was).code.endswith(
        "bucket_cap_mb=25)"
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, ""),
        ({"once": True}, "measured once"),
        ({"saves_low": -0.002}, "within noise of 25 MiB"),
        ({"value": 25, "saves_low": 0.0}, ""),
    ],
)
def test_a_word_of_doubt_goes_with_the_value_that_leads(found, words):
    assert caveat(BUCKET_CAP_MB, replace(WELL, **found)) == words


def test_a_budget_for_one_window_tells_of_nothing_that_was_not_measured():
    _, tuner = searched(options=SearchOptions(budget_steps=14))
    found = tuner.state.result.found
    assert (found.value, found.known, found.spent, found.rivals_gain) == (25, False, True, None)


# Which steps count


def test_only_undisturbed_steps_of_a_value_count_for_it():
    job, tuner = searching(2, LiveJob(valley(60), noise=0.001))
    job.disturb(5)
    run(tuner, job)
    assert len(tuner.state.windows) > 8
    for window in tuner.state.windows:
        expected_ns = valley(60)(window.value) * MS
        assert all(abs(step_ns / expected_ns - 1) < 0.01 for step_ns in window.steps_ns), window
        assert window.exposed_ns == pytest.approx(expected_ns / 10, rel=0.01)


def test_all_steps_are_paid_for_those_between_windows_too():
    job = LiveJob(valley(60))
    tuner = Tuner(job, job.knob)
    tuner.tick(job.tick())
    began = job.tick().ranks[0].last.step
    run(tuner, job, windows(6))
    passed = job.fleet.snapshot().ranks[0].last.step - began
    assert passed - 3 <= tuner.state.steps_spent <= passed + 6
    assert tuner.state.steps_spent > sum(len(window.steps_ns) for window in tuner.state.windows)


def test_the_next_change_is_agreed_on_while_the_window_goes_on():
    _, tuner = searching(4)
    # Between the last step of a window and the first of the next lie the transitional and settling ones.
    for before, after in zip(tuner.state.windows[1:], tuner.state.windows[2:], strict=False):
        assert after.first_step - (before.first_step + len(before.steps_ns)) <= 4


def test_sizes_that_give_the_same_buckets_are_measured_once():
    _, tuner = searched(LiveJob(valley(4), gradients=(4 << 20,) * 4))
    # Up to 4 MiB four buckets of one gradient each, up to 8 two of two, up to 12 of three and one, or one.
    assert [min(-(-point.value // 4), 4) for point in tuner.state.points] == [1, 2, 3, 4]
    assert tuner.state.alike_from == 13  # all four in one


def test_a_job_of_quick_steps_gets_as_many_windows_though_each_is_longer():
    # Agreeing takes a second, which is 200 steps: that long is the least window.
    _, tuner = searched(LiveJob(lambda value: valley(60)(value) / 20))
    assert tuner.state.result.found.known
    assert len(tuner.state.windows) >= 9
    assert max(len(window.steps_ns) for window in tuner.state.windows) > 100


# Interference


@pytest.mark.parametrize(
    ("doubts", "why", "left"),
    [
        (
            False,
            "somebody else changed it: set bucket_cap_mb 99",
            "the job has 99 MiB, as somebody else set it",
        ),
        (
            True,
            "somebody else may have changed it: set bucket_cap_mb 99",
            "it is not known which value the job has; its hub goes back to 25 MiB unless it learns of that "
            "change",
        ),
    ],
)
def test_a_persons_change_of_the_knob_ends_it_and_stays(doubts, why, left):
    job, tuner = searching(3, keep=True)
    many, job.doubts = len(job.sent), doubts
    job.person_sets(99)
    run(tuner, job, most_s=TICK_S)
    assert why in tuner.state.why
    assert (tuner.state.left, tuner.state.failed) == (left, False)
    assert (len(job.sent), job.value) == (many, 99)
    assert not any(search.over for search in job.held)


def test_a_persons_change_of_another_knob_ends_it_and_the_old_value_comes_back():
    job, tuner = searching(3)
    job.person_sets(2, OTHER)
    run(tuner, job)
    assert "somebody else changed the job: set accumulation 2" in tuner.state.why
    assert job.value == 25


def test_an_earlier_change_by_a_person_is_none_of_it():
    job = LiveJob(valley(60))
    job.person_sets(40)
    job.tick()
    _, tuner = searched(job)
    assert (tuner.state.failed, job.value) == (False, 40)


@pytest.mark.parametrize(
    ("by", "why"),
    [
        ("ann@there, pid 7", "ann@there, pid 7 searches for the best bucket_cap_mb already"),
        ("", "the job's hub has not taken the search"),
    ],
)
def test_a_hub_that_does_not_take_the_search_ends_it_before_a_command_is_sent(by, why):
    job = LiveJob(valley(60))
    job.takes_searches = False
    if by:
        job.say(structs.replace(commands.make_search(job.knob), by=by))
    tuner = Tuner(job, job.knob)
    run(tuner, job, most_s=LEASE_WAIT_S + 1)
    assert (tuner.state.failed, tuner.state.why, job.sent) == (True, why, [])


def test_a_hub_that_has_ended_the_search_is_believed():
    job, tuner = searching(2)
    many = len(job.sent)
    job.takes_searches = False
    job.say(structs.replace(tuner.lease, over=True))
    run(tuner, job, most_s=TICK_S)
    assert "hub has ended it" in tuner.state.why
    assert (tuner.state.left, len(job.sent)) == ("the job's hub sets it back to 25 MiB", many)


# What goes wrong


def test_a_busy_job_is_asked_again_and_not_for_ever():
    job = LiveJob(valley(60))
    job.busy = 3
    tuner = Tuner(job, job.knob)
    run(tuner, job, lambda state: state.doing == "waits: another command is under way")
    run(tuner, job)
    assert tuner.state.result.found.known
    assert sent(job)[:4] == [sent(job)[0]] * 4
    job = LiveJob(valley(60))
    job.busy = 1000
    tuner = Tuner(job, job.knob)
    run(tuner, job, most_s=2 * BUSY_S)
    assert tuner.state.failed
    assert "another command is under way" in tuner.state.why


def test_a_refusal_ends_it_with_the_reason():
    job = LiveJob(valley(60))
    job.refuses = "its model is compiled"
    _, tuner = searched(job)
    assert tuner.state.why == "bucket_cap_mb cannot be changed: rank 0 refused: its model is compiled"
    assert (tuner.state.failed, len(job.sent)) == (True, 1)


def test_a_change_that_fails_is_tried_again_and_then_given_up():
    job, tuner = searching(2)
    many = len(job.sent)
    job.fails = "the store does not answer"
    run(tuner, job, lambda state: "cannot be changed" in state.why)
    assert len(job.sent) - many - 1 in (TRIES, TRIES + 1)
    job.fails = ""
    run(tuner, job)
    assert (tuner.state.failed, job.value) == (True, 25)


def test_a_change_that_may_have_been_made_is_undone_though_nobody_says_that_it_was():
    job = LiveJob(valley(60))
    job.doubts = True
    tuner = Tuner(job, job.knob)
    run(tuner, job, lambda state: bool(job.sent))
    tuner.stop()
    job.doubts = False
    run(tuner, job)
    assert (job.value, sent(job)[-1], tuner.state.left) == (25, "restore bucket_cap_mb", BACK)


def test_what_cannot_be_put_back_is_left_to_the_hub():
    job, tuner = searching(2)
    tuner.stop()
    job.refuses = "it cannot be changed any more"
    run(tuner, job)
    assert "bucket_cap_mb was not set back to 25: rank 0 refused" in tuner.state.why
    left = f"the job has {job.value} MiB now; its hub tries once more to go back to 25 MiB"
    assert (tuner.state.failed, tuner.state.left) == (True, left)
    assert not any(search.over for search in job.held)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda job: job.end(), "the job ended"),
        (lambda job: job.fleet.apply(RankEnd(1, 0, False)), "rank 1 ended"),
        (lambda job: job.fleet.apply(info(1, pid=77)), "rank 1 was started again"),
        (lambda job: job.fleet.apply(welcome(job="job-2")), "the job was replaced by another one"),
    ],
)
def test_the_end_of_the_job_ends_it_with_what_was_found_so_far(happens, why):
    job, tuner = searching(4)
    many = len(job.sent)
    happens(job)
    tuner.tick(job.fleet.snapshot())
    assert (tuner.over, tuner.state.why, tuner.state.left) == (True, why, "")
    assert not tuner.state.result.found.known
    assert len(job.sent) == many


def test_a_connection_that_is_lost_for_a_moment_is_waited_for_and_one_that_stays_lost_ends_it():
    job, tuner = searching(2)
    job.fleet.set_hub_state(HubState.LOST)
    for _ in range(round((LOST_S - 1) / TICK_S)):
        tuner.tick(job.tick())
    assert tuner.state.doing == "waits: there is no connection to the job"
    job.fleet.set_hub_state(HubState.LIVE)
    run(tuner, job, windows(4))
    assert not tuner.state.failed
    job.fleet.set_hub_state(HubState.LOST)
    run(tuner, job, most_s=LOST_S + 1)
    assert "the connection to the job broke" in tuner.state.why


# Being stopped


@pytest.mark.parametrize("count", [1, 2, 5])
def test_stopped_in_the_middle_it_puts_the_old_value_back(count):
    job, tuner = searching(count, keep=True)
    tuner.stop()
    assert tuner.state.steps_to_go is None
    run(tuner, job)
    assert (job.value, tuner.state.why, tuner.state.failed) == (25, "stopped", False)
    assert tuner.state.left in (BACK, "the job still has 25 MiB")
    assert job.held[-1].over


def test_stopped_before_it_has_changed_anything_it_sends_nothing():
    job = LiveJob(valley(60))
    tuner = Tuner(job, job.knob)
    for _ in range(3):
        tuner.tick(job.tick())
    tuner.stop()
    run(tuner, job, most_s=LEASE_WAIT_S)
    assert (job.sent, tuner.state.left) == ([], "the job still has 25 MiB")


def test_stopped_while_the_best_is_being_set_it_goes_back_all_the_same():
    job = LiveJob(valley(60))
    tuner = Tuner(job, job.knob, keep=True, options=SearchOptions(budget_steps=120))
    run(tuner, job, lambda state: state.doing.startswith("sets bucket_cap_mb to 54"))
    assert job.value != 54
    tuner.stop()
    run(tuner, job)
    assert job.value == 25


# Its state, and what is said beforehand


def test_the_state_shows_how_far_it_is():
    job = LiveJob(valley(60))
    tuner = Tuner(job, job.knob, 1, 400, options=SearchOptions(budget_steps=500))
    assert (tuner.state.points, tuner.state.doing) == ((), "waits for the job's next step")
    run(tuner, job, windows(3))
    state = tuner.state
    assert state.steps_spent + state.steps_to_go == 500
    assert 0.1 * state.steps_to_go < state.seconds_to_go < state.steps_to_go
    assert [point.windows for point in state.points] == [1, 1, 1]
    assert all(point.low_ns < point.step_ns < point.high_ns for point in state.points)
    assert (state.least, state.most, state.round, state.result) == (1, 400, 1, None)
    job.fleet.apply(Notice(0, 0, "info", "anything"))
    run(tuner, job)
    assert (tuner.state.now, tuner.state.steps_to_go, tuner.state.doing) == (None, None, "done")


@pytest.mark.parametrize(
    ("knob", "ends", "complaint"),
    [
        (BUCKET_CAP_MB, (50, 20), "bucket_cap_mb allows no value from 50 to 20"),
        (structs.replace(BUCKET_CAP_MB, refusal="its model is compiled"), (), "its model is compiled"),
        (structs.replace(OTHER, changes_work=True), (), "another amount of work with another accumulation"),
        (
            structs.replace(BUCKET_CAP_MB, value=None, value_text="2.5"),
            (),
            "no command can go back to that",
        ),
    ],
)
def test_what_cannot_be_searched_is_said_at_once(knob, ends, complaint):
    with pytest.raises(ValueError, match=complaint):
        Tuner(LiveJob(valley(60)), knob, *ends)
