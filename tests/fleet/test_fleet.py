from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.fleet.fleet import HISTORY_STEPS, MAX_FRESH, MAX_NOTICES, MAX_SAMPLES, RECENT_DETAILS, Fleet
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire.messages import Notice, RankEnd

from .builders import (
    GB,
    MS,
    T0,
    Clock,
    S,
    detail,
    device,
    info,
    machine,
    numa,
    sample,
    status,
    step,
    unmeasured,
    welcome,
)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def fleet(clock):
    fleet = Fleet(clock)
    fleet.apply(welcome())
    fleet.apply(status())
    return fleet


def feed(fleet, *messages):
    for message in messages:
        fleet.apply(message)
    return fleet.snapshot()


def test_announced_ranks_are_present_before_they_are_seen(fleet):
    views = feed(fleet).ranks
    assert [view.rank for view in views] == [0, 1]
    assert all(view.info is None and view.last is None and view.age_s is None for view in views)
    assert not any(view.stale or view.ended for view in views)


def test_the_newest_measured_step_outlives_steps_without_measurement(fleet):
    view = feed(fleet, step(0, 0), unmeasured(0, 1), unmeasured(0, 2)).ranks[0]
    assert view.last.step == 2
    assert view.measured.step == 0
    assert [known.step for known in view.history] == [0, 1, 2]


def test_history_is_bounded_and_ends_with_the_newest_step(fleet):
    view = feed(fleet, *(step(0, number) for number in range(HISTORY_STEPS + 50))).ranks[0]
    assert len(view.history) == HISTORY_STEPS
    assert view.history[-1] is view.last


def test_history_that_comes_again_changes_nothing(fleet):
    sent = [step(0, number) for number in range(5)]
    before = feed(fleet, *sent)
    after = feed(fleet, welcome(), *sent)
    assert after.ranks[0].history == before.ranks[0].history
    assert after.fresh == ()


def test_a_restarted_rank_begins_anew(fleet):
    feed(fleet, info(0, pid=1), *(step(0, number) for number in range(5)))
    later = step(0, 0, start_ns=T0 + 3600 * S)
    assert feed(fleet, info(0, pid=2), later).ranks[0].history == (later,)


def test_a_rank_that_counts_from_zero_again_begins_anew(fleet):
    feed(fleet, *(step(0, number) for number in range(5)))
    later = step(0, 0, start_ns=T0 + 3600 * S)
    assert feed(fleet, later).ranks[0].history == (later,)


def test_another_job_empties_the_fleet_and_the_same_one_does_not(fleet):
    feed(fleet, info(0), step(0, 0), Notice(0, T0, "info", "hello"))
    assert feed(fleet, welcome()).ranks[0].last is not None
    other = feed(fleet, welcome(job="job-2"))
    assert other.ranks[0].last is None
    assert other.notices == ()


def test_fresh_steps_are_handed_out_once_and_in_order_of_arrival(fleet):
    sent = (step(1, 0), step(0, 0), step(0, 1))
    assert feed(fleet, *sent).fresh == sent
    assert feed(fleet).fresh == ()


def test_fresh_steps_that_nobody_takes_are_bounded_and_counted(fleet):
    surplus = 7
    snapshot = feed(fleet, *(step(0, number) for number in range(MAX_FRESH + surplus)))
    assert len(snapshot.fresh) == MAX_FRESH
    assert snapshot.fresh[0].step == surplus
    assert snapshot.totals.dropped == surplus


def test_a_rank_is_stale_after_five_seconds_without_a_step(fleet, clock):
    feed(fleet, step(0, 0))
    clock.pass_s(4.9)
    assert not feed(fleet).ranks[0].stale
    clock.pass_s(0.2)
    view = feed(fleet).ranks[0]
    assert view.stale
    assert view.age_s == pytest.approx(5.1)


def test_a_rank_with_long_steps_is_stale_after_five_of_them(fleet, clock):
    feed(fleet, *(unmeasured(0, number, ms=2000) for number in range(5)))
    clock.pass_s(9.9)
    assert not feed(fleet).ranks[0].stale
    clock.pass_s(0.2)
    assert feed(fleet).ranks[0].stale


def test_a_job_that_hung_before_the_dashboard_came_is_stale_at_once(clock):
    fleet = Fleet(clock)
    clock.pass_s(60)
    view = feed(fleet, welcome(), info(0), step(0, 0), status()).ranks[0]
    assert view.stale
    assert view.age_s == pytest.approx(60 - 0.080, abs=1e-6)


def test_a_rank_that_ended_is_not_stale_and_one_that_comes_back_has_not_ended(fleet, clock):
    feed(fleet, info(0), step(0, 0), RankEnd(0, T0, True))
    clock.pass_s(60)
    view = feed(fleet).ranks[0]
    assert view.ended
    assert not view.stale
    assert not feed(fleet, info(0)).ranks[0].ended


def test_every_rank_has_ended_only_when_all_that_were_seen_have(fleet):
    assert not fleet.every_rank_ended
    feed(fleet, info(0), info(1), RankEnd(0, T0, True))
    assert not fleet.every_rank_ended
    feed(fleet, RankEnd(1, T0, False))
    assert fleet.every_rank_ended


def test_the_hub_publishes_that_the_job_ended(fleet):
    feed(fleet, status(ended=True))
    assert fleet.job_ended
    feed(fleet, welcome())
    assert not fleet.job_ended


def test_what_was_dropped_on_all_parts_of_the_way_is_added_up(fleet):
    feed(fleet, step(0, 0, dropped=3), step(1, 0, dropped=4), status(dropped=10))
    fleet.set_link(LinkState.LIVE, dropped=100)
    assert feed(fleet).totals.dropped == 117
    # The next hub counts from 0 again.
    assert feed(fleet, welcome(), status(dropped=1)).totals.dropped == 118


def test_notices_are_bounded_and_none_is_kept_twice(fleet):
    notices = [Notice(0, T0 + at, "info", str(at)) for at in range(MAX_NOTICES + 10)]
    assert feed(fleet, *notices, notices[-1]).notices == tuple(notices[-MAX_NOTICES:])


def test_the_link_keeps_the_time_of_its_last_change_of_state(fleet, clock):
    fleet.set_link(LinkState.LIVE)
    since_ns = clock.at_ns
    clock.pass_s(5)
    fleet.set_link(LinkState.LIVE)
    assert feed(fleet).link_since_ns == since_ns
    fleet.set_link(LinkState.STALE, "why")
    snapshot = feed(fleet)
    assert (snapshot.link, snapshot.link_note, snapshot.link_since_ns) == (
        LinkState.STALE,
        "why",
        clock.at_ns,
    )


def test_the_newest_details_are_kept(fleet):
    view = feed(fleet, *(detail(0, at) for at in range(2 * RECENT_DETAILS))).ranks[0]
    assert view.detail.step == 2 * RECENT_DETAILS - 1
    assert [each.step for each in view.details] == list(range(RECENT_DETAILS, 2 * RECENT_DETAILS))


@pytest.mark.parametrize("rank", [-1, 4096, 1 << 40])
def test_an_impossible_rank_is_not_believed(fleet, rank):
    snapshot = feed(fleet, step(rank, 0), info(rank), RankEnd(rank, T0, True), detail(rank))
    assert [view.rank for view in snapshot.ranks] == [0, 1]


def test_totals_know_nothing_before_the_first_step(fleet):
    totals = feed(fleet, info(0)).totals
    assert (totals.step, totals.step_ns, totals.overlap, totals.exposed_ns) == (None, None, None, None)
    assert (totals.stall_ns, totals.idle_ns, totals.speedup, totals.attainable) == (None, None, None, None)


def test_totals_add_up_the_ranks_newest_measured_steps(fleet):
    totals = feed(
        fleet, info(0), info(1), step(0, 4, compute=60, comm=30, hidden=20, idle=10, stall=10),
        step(1, 5, compute=40, comm=10, hidden=10, idle=40, stall=0),
    ).totals  # fmt: skip
    assert totals.step == 4
    assert totals.step_ns == 80 * MS
    assert totals.overlap == 30 / 40
    assert (totals.exposed_ns, totals.stall_ns, totals.idle_ns) == (5 * MS, 5 * MS, 25 * MS)
    assert totals.speedup == 140 / 160
    assert totals.attainable == 140 / 100


def test_overlap_without_communication_is_none_and_not_zero(fleet):
    totals = feed(fleet, info(0), step(0, 0, comm=0, hidden=0)).totals
    assert totals.overlap is None
    assert totals.attainable == 1


def test_idle_is_unknown_where_the_source_cannot_see_it(fleet):
    assert feed(fleet, info(0, exact=False), step(0, 0)).totals.idle_ns is None
    seen = feed(fleet, info(1), step(1, 0, idle=7)).totals
    assert seen.idle_ns == 7 * MS


def test_the_least_launch_lead_counts_and_ranks_that_are_launch_bound_are_named(fleet):
    assert feed(fleet, info(0), info(1), step(0, 0)).totals.launch_lead_ns is None
    ahead, level = step(0, 1, launch_lead_ns=40 * MS), step(1, 1, idle=20, launch_lead_ns=0)
    totals = feed(fleet, ahead, level).totals
    assert (totals.launch_lead_ns, totals.launch_bound) == (0, (1,))


def test_ranks_that_ended_count_only_when_all_have_and_the_step_never_goes_back(fleet):
    feed(fleet, info(0), info(1), step(0, 3), step(1, 9))
    assert feed(fleet).totals.step == 3
    assert feed(fleet, RankEnd(0, T0, True)).totals.step == 9
    both = feed(fleet, RankEnd(1, T0, True)).totals
    assert (both.step, both.ranks) == (9, 2)


def test_all_figures_of_the_job_are_of_one_step_that_all_ranks_have_made(fleet):
    both = [step(rank, number, idle=number) for rank in (0, 1) for number in (1, 2)]
    snapshot = feed(fleet, info(0), info(1), *both, step(0, 3, idle=100))
    assert [view.measured.step for view in snapshot.ranks] == [2, 2]
    assert [view.last.step for view in snapshot.ranks] == [3, 2]
    totals = snapshot.totals
    assert (totals.step, totals.measured_step, totals.ranks) == (2, 2, 2)
    assert (totals.step_ns, totals.idle_ns) == (step(0, 2, idle=2).step_ns, 2 * MS)


def test_a_step_that_some_rank_has_not_measured_gives_way_to_the_one_before_it(fleet):
    steps = [step(0, 1), step(0, 2), step(1, 1), unmeasured(1, 2), step(1, 3), unmeasured(0, 3)]
    snapshot = feed(fleet, info(0), info(1), *steps)
    assert [view.measured.step for view in snapshot.ranks] == [1, 1]


def test_ranks_that_count_their_steps_apart_are_each_taken_at_their_newest(fleet):
    snapshot = feed(fleet, info(0), info(1), step(0, 5), step(1, 1000))
    assert [view.measured.step for view in snapshot.ranks] == [5, 1000]
    assert (snapshot.totals.measured_step, snapshot.totals.ranks) == (None, 2)


def test_times_of_the_job_are_the_mean_over_its_ranks_as_overlap_is(clock):
    fleet = Fleet(clock)
    feed(fleet, welcome(world_size=4), status(), *map(info, range(4)))
    totals = feed(fleet, *(step(rank, 0, idle=9.65 if rank == 2 else 0.05) for rank in range(4))).totals
    assert totals.idle_ns == round((9.65 + 3 * 0.05) / 4 * MS)
    assert totals.exposed_ns == 10 * MS


def test_a_snapshot_is_not_changed_by_what_comes_after_it(fleet):
    before = feed(fleet, info(0), step(0, 0))
    kept = replace(before)
    feed(fleet, step(0, 1), RankEnd(0, T0, True))
    assert before == kept
    assert before.ranks[0].last.step == 0


parts_ms = st.integers(0, 1000)


@given(st.lists(st.tuples(parts_ms, parts_ms, parts_ms, parts_ms), min_size=1, max_size=6))
def test_totals_stay_within_what_is_possible(ranks):
    fleet = Fleet(Clock())
    for rank, (only, hidden, exposed, idle) in enumerate(ranks):
        fleet.apply(info(rank))
        fleet.apply(
            step(rank, 0, compute=only + hidden, comm=hidden + exposed, hidden=hidden, idle=idle + 1)
        )
    totals = fleet.snapshot().totals
    assert totals.overlap is None or 0 <= totals.overlap <= 1
    if totals.speedup is not None:
        assert 0 < totals.speedup <= totals.attainable <= 2
    assert 0 <= totals.idle_ns <= totals.step_ns


# The machine under the ranks.


def test_before_anything_is_known_of_a_machine_nothing_is_claimed(fleet):
    view = feed(fleet, info(0), step(0, 0)).ranks[0]
    assert (view.machine, view.device, view.numa, view.sample, view.traffic) == (None,) * 5
    assert view.samples == ()


def test_of_facts_the_newest_are_shown(fleet):
    changed = numa(0, state="unbound")
    view = feed(fleet, machine(0), device(0, "GPU-7"), numa(0), device(0), changed).ranks[0]
    assert (view.machine, view.device, view.numa) == (machine(0), device(0), changed)


def test_the_samples_of_a_minute_are_kept_the_newest_last(fleet):
    sent = [sample(0, at_s=number / 2) for number in range(200)]
    view = feed(fleet, *sent).ranks[0]
    assert view.samples == tuple(sent[-121:])
    assert view.sample is sent[-1]


def test_samples_that_come_too_often_are_bounded(fleet):
    view = feed(fleet, *(sample(0, at_s=number / 100) for number in range(500))).ranks[0]
    assert len(view.samples) == MAX_SAMPLES


def test_fresh_samples_are_handed_out_once_and_in_order_of_arrival(fleet):
    sent = (sample(1, 1.0), sample(0, 1.0), sample(0, 1.5))
    assert feed(fleet, *sent).fresh_samples == sent
    assert feed(fleet).fresh_samples == ()


def test_fresh_samples_that_nobody_takes_are_bounded_and_counted(fleet):
    snapshot = feed(fleet, *(sample(0, at_s=number) for number in range(MAX_FRESH + 3)))
    assert len(snapshot.fresh_samples) == MAX_FRESH
    assert snapshot.totals.dropped == 3


def test_samples_that_come_again_with_the_history_are_not_doubled(fleet):
    sent = [sample(0, at_s=number / 2) for number in range(9)]
    feed(fleet, *sent)
    snapshot = feed(fleet, welcome(), device(0), *sent, status())
    assert snapshot.ranks[0].samples == tuple(sent)
    assert snapshot.fresh_samples == ()


def test_a_clock_that_is_set_back_begins_the_samples_anew(fleet):
    feed(fleet, sample(0, at_s=3600.0))
    assert feed(fleet, sample(0, at_s=1.0)).ranks[0].samples == (sample(0, at_s=1.0),)


def test_a_restarted_rank_forgets_what_it_ran_on_and_its_samples(fleet):
    feed(fleet, info(0, pid=1), machine(0), device(0), numa(0), step(0, 0), sample(0))
    assert feed(fleet, info(0, pid=1, backend="gloo")).ranks[0].device == device(0)
    view = feed(fleet, info(0, pid=2)).ranks[0]
    assert (view.machine, view.device, view.numa, view.traffic) == (None,) * 4
    assert view.samples == ()


@pytest.mark.parametrize("rank", [-1, 4096])
def test_the_machine_of_an_impossible_rank_is_not_believed(fleet, rank):
    snapshot = feed(fleet, machine(rank), device(rank), numa(rank), sample(rank))
    assert [view.rank for view in snapshot.ranks] == [0, 1]
    assert snapshot.fresh_samples == ()


def moving(rank, number, link):
    """A step of 80 ms that moves so many bytes each way; the tenth ends shortly after T0."""
    return step(rank, number, start_ns=T0 + (number - 9) * 80 * MS, link_tx_bytes=link, link_rx_bytes=link)


def test_a_ranks_traffic_is_what_was_measured_beside_what_its_collectives_account_for(fleet):
    steps = [moving(0, number, 16 * 10**8) for number in range(10)]
    view = feed(fleet, info(0), device(0), *steps, sample(0, 0.1)).ranks[0]
    assert view.traffic.over == "nvlink"
    assert (view.traffic.rx_bytes_per_s, view.traffic.tx_bytes_per_s) == (20 * GB, 20 * GB)
    assert view.traffic.collectives_rx_bytes_per_s == 20 * GB
    assert view.traffic.reason == ""


def test_traffic_is_looked_at_again_with_each_sample_and_not_for_steps_alone(fleet):
    before = feed(fleet, info(0), device(0), moving(0, 0, 0), sample(0, 0.0)).ranks[0].traffic
    assert feed(fleet, moving(0, 1, 0)).ranks[0].traffic is before
    assert feed(fleet, sample(0, 0.5, nvlink=(30 * GB, 0))).ranks[0].traffic.rx_bytes_per_s == 25 * GB


def test_ranks_on_one_gpu_are_counted_together_while_they_run(fleet):
    ranks = [(info(rank), device(rank, "GPU-0"), moving(rank, 0, 8 * 10**8)) for rank in (0, 1)]
    now = feed(fleet, *ranks[0], *ranks[1], sample(0, 0.1), sample(1, 0.1))
    assert [view.traffic.collectives_tx_bytes_per_s for view in now.ranks] == [20 * GB] * 2
    now = feed(fleet, RankEnd(1, T0, True), sample(0, 0.6))
    assert now.ranks[0].traffic.collectives_tx_bytes_per_s == 10 * GB


def test_ranks_on_gpus_of_their_own_are_not_added_up(fleet):
    ranks = [(info(rank), device(rank), moving(rank, 0, 8 * 10**8), sample(rank, 0.1)) for rank in (0, 1)]
    now = feed(fleet, *ranks[0], *ranks[1])
    assert [view.traffic.collectives_tx_bytes_per_s for view in now.ranks] == [10 * GB] * 2


def test_a_rank_that_computes_on_no_gpu_has_no_traffic(fleet):
    view = feed(fleet, info(0), device(0, ""), device(1, ""), moving(0, 0, 8)).ranks[0]
    assert view.traffic is None


def test_collectives_that_the_hosts_clock_saw_are_not_claimed_for_the_gpus_links(fleet):
    view = feed(fleet, info(0, source="host"), device(0), moving(0, 0, 8), sample(0, 0.1)).ranks[0]
    assert view.traffic.collectives_tx_bytes_per_s is None
    assert "CPU" in view.traffic.reason
