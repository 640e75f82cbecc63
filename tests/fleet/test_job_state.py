import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as replaced

from overlaptop.fleet import rank_state
from overlaptop.fleet.job_state import MAX_NOTICES, JobState
from overlaptop.fleet.notices import TOGETHER_NS, grouped
from overlaptop.fleet.past import over_window
from overlaptop.fleet.rank_state import MAX_SAMPLES, MAX_STACKS, RECENT_DETAILS
from overlaptop.fleet.snapshot import HubState, Window
from overlaptop.fleet.totals import total, with_means
from overlaptop.fleet.window import EVIDENCE_STEPS, HISTORY_STEPS, MOST_HISTORY_STEPS, evidence_steps
from overlaptop.wire.messages import Notice, RankEnd

from .builders import (
    GB,
    MS,
    T0,
    Clock,
    S,
    detail,
    device,
    feed,
    info,
    machine,
    numa,
    sample,
    stacks,
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
    fleet = JobState(clock)
    fleet.apply(welcome())
    fleet.apply(status())
    return fleet


@pytest.mark.parametrize("shift_ns", [0, 30 * MS], ids=["same", "better clock"])
def test_history_that_comes_again_changes_nothing(fleet, shift_ns):
    def history(shift_ns, steps=5):
        yield Notice(0, T0 + shift_ns, "info", "hello")
        yield from (step(0, at, start_ns=T0 + at * 80 * MS + shift_ns) for at in range(steps))
        yield from (sample(0, at / 2) for at in range(9))

    before = feed(fleet, *history(0)).ranks[0]
    again = feed(fleet, welcome(), *history(shift_ns, steps=7), status())
    assert (again.ranks[0].history[:5], again.ranks[0].samples) == (before.history, before.samples)
    assert ([fresh.step for fresh in again.fresh], again.fresh_samples) == ([5, 6], ())
    assert len(again.notices) == 1


def test_a_restarted_rank_begins_anew(fleet):
    later = step(0, 0, start_ns=T0 + 3600 * S)
    machine_of = (machine(0), device(0), numa(0), sample(0))
    feed(fleet, info(0, pid=1), *machine_of, *(step(0, number) for number in range(5)), stacks(0, 3))
    assert feed(fleet, info(0, pid=1, backend="gloo")).ranks[0].device == device(0)
    view = feed(fleet, later).ranks[0]  # it counts from 0 again
    assert (view.history, view.stacks) == ((later,), ())
    view = feed(fleet, stacks(0, 4), info(0, pid=2)).ranks[0]
    assert (view.machine, view.device, view.numa, view.traffic, view.last) == (None,) * 5
    assert (view.samples, view.history, view.stacks) == ((), (), ())


@pytest.mark.parametrize(("step_ms", "stale_s"), [(80, 5), (2000, 10)])
def test_rank_is_stale_after_five_seconds_and_five_of_its_steps(fleet, clock, step_ms, stale_s):
    feed(fleet, info(0), *(unmeasured(0, number, ms=step_ms) for number in range(5)))
    clock.pass_s(stale_s - 0.1)
    assert not feed(fleet).ranks[0].stale
    clock.pass_s(0.2)
    view = feed(fleet).ranks[0]
    assert (view.stale, view.age_s) == (True, pytest.approx(stale_s + 0.1))
    view = feed(fleet, RankEnd(0, T0, True)).ranks[0]
    assert (view.stale, view.ended) == (False, True)
    assert not feed(fleet, info(0)).ranks[0].ended


def test_job_that_hung_before_the_dashboard_is_stale_at_once(clock):
    clock.pass_s(60)
    view = feed(JobState(clock), welcome(), info(0), step(0, 0), status()).ranks[0]
    assert (view.stale, view.age_s) == (True, pytest.approx(60 - 0.080))


def test_what_was_dropped_on_all_parts_of_the_way_is_added_up(fleet):
    feed(fleet, step(0, 0, dropped=3), step(1, 0, dropped=4), status(dropped=10))
    fleet.set_hub_state(HubState.LIVE, dropped=100)
    assert feed(fleet).totals.dropped == 117
    # The next hub counts from 0 again.
    assert feed(fleet, welcome(), status(dropped=1)).totals.dropped == 118


def test_notices_are_bounded_and_none_is_kept_twice(fleet):
    notices = [Notice(0, T0 + at, "info", str(at)) for at in range(MAX_NOTICES + 10)]
    assert feed(fleet, *notices, notices[-1]).notices == tuple(notices[-MAX_NOTICES:])


def test_same_text_of_several_ranks_is_one_notice():
    def ranks_of(*of_ranks):
        made = (Notice(rank, at_ns, level, "host instead of events") for rank, at_ns, level in of_ranks)
        return [(each.ranks, each.at_ns) for each in grouped(made)]

    late_ns = T0 + TOGETHER_NS + 2
    assert ranks_of((2, T0, "info"), (0, T0 + 1, "info"), (1, T0 - 1, "info")) == [((0, 1, 2), T0 - 1)]
    apart = ranks_of((0, T0, "info"), (0, T0 + 1, "info"), (1, late_ns, "info"), (1, late_ns, "error"))
    assert [ranks for ranks, _ in apart] == [(0,), (0,), (1,), (1,)]


def test_an_impossible_rank_is_not_believed(fleet):
    made = (make(4096) for make in (step, info, detail, machine, device, numa, sample))
    snapshot = feed(fleet, *made, RankEnd(4096, T0, True))
    assert [view.rank for view in snapshot.ranks] == [0, 1]
    assert (snapshot.fresh, snapshot.fresh_samples) == ((), ())


def test_idle_is_unknown_where_the_source_cannot_see_it(fleet):
    totals = feed(fleet, info(0, exact=False), step(0, 0, comm=0, hidden=0)).totals
    assert (totals.overlap, totals.attainable, totals.idle_ns) == (None, 1, None)
    assert feed(fleet, info(1), step(1, 0, idle=7)).totals.idle_ns == 7 * MS


def test_ranks_that_ended_count_only_when_all_have(fleet):
    assert feed(fleet, info(0), info(1), step(0, 3), step(1, 9)).totals.step == 3
    for rank, counted in ((0, 1), (1, 2)):
        totals = feed(fleet, RankEnd(rank, T0, True)).totals
        assert (totals.step, totals.ranks) == (9, counted)


def test_figures_are_of_steps_that_all_ranks_have_measured(fleet):
    both = [step(rank, number, idle=number) for rank in (0, 1) for number in (1, 2)]
    snapshot = feed(fleet, info(0), info(1), *both, unmeasured(0, 3), step(0, 4, idle=100), step(1, 3))
    assert [view.measured.step for view in snapshot.ranks] == [2, 2]
    assert [view.last.step for view in snapshot.ranks] == [4, 3]
    totals = snapshot.totals
    assert (totals.step, totals.measured_step, totals.ranks) == (3, 2, 2)
    assert (totals.first_step, totals.steps, totals.idle_ns) == (1, 2, 1.5 * MS)


@given(
    st.lists(
        st.lists(st.tuples(*[st.integers(1, 900)] * 4), min_size=4, max_size=4), min_size=1, max_size=3
    )
)
def test_figures_are_means_and_shares_of_the_sums(steps):
    made = [
        [step(rank, number, compute=compute + hidden, comm=hidden + exposed, hidden=hidden, idle=idle)
         for number, (compute, hidden, exposed, idle) in enumerate(of_rank)]
        for rank, of_rank in enumerate(steps)
    ]  # fmt: skip
    fleet = JobState(Clock())
    snapshot = feed(fleet, *(each for rank, of_rank in enumerate(made) for each in (info(rank), *of_rank)))
    totals = total(snapshot.ranks, 0, Window.STEPS)
    every = [each for of_rank in made for each in of_rank]

    def all_ns(name):
        return sum(getattr(each, name) for each in every)

    assert (totals.ranks, totals.steps, totals.cut) == (len(steps), 4, False)
    for name in ("step_ns", "exposed_ns", "stall_ns", "idle_ns"):
        assert getattr(totals, name) == round(all_ns(name) / len(every))
    assert totals.overlap == all_ns("hidden_ns") / all_ns("comm_ns")
    busy_ns = all_ns("compute_ns") + all_ns("comm_ns")
    assert totals.speedup == busy_ns / all_ns("step_ns")
    assert totals.attainable == busy_ns / max(all_ns("compute_ns"), all_ns("comm_ns"))
    rows = [view.row for view in with_means(over_window(snapshot, Window.STEPS)).ranks]
    for name in ("step_ns", "exposed_ns", "stall_ns", "idle_ns"):
        mean = sum(getattr(row, name) for row in rows) / len(rows)
        assert abs(mean - getattr(totals, name)) <= 1


@pytest.mark.parametrize(
    ("window", "steps", "cut"),
    [
        (Window.STEP, 1, False),
        (Window.STEPS, 10, False),
        (Window.SECONDS, 250, False),
        (Window.MINUTE, 600, True),
    ],
)
def test_a_window_is_as_long_as_it_says_or_says_that_it_is_cut(fleet, window, steps, cut):
    snapshot = feed(fleet, info(0), *(step(0, number) for number in range(700)))
    totals = total(snapshot.ranks, 0, window)
    assert (totals.steps, totals.cut, totals.first_step) == (steps, cut, 700 - steps)


def test_window_begins_anew_where_a_setting_was_changed(fleet):
    before = [step(0, number, idle=50) for number in range(5)]
    changed = replaced(step(0, 5), transitional=True, comm_ns=None)
    captured = replaced(step(0, 7), captured=True, comm_ns=None)
    totals = feed(fleet, info(0), *before, changed).totals
    assert (totals.steps, totals.idle_ns) == (5, 50 * MS)
    totals = feed(fleet, step(0, 6, idle=1), captured, step(0, 8, idle=3)).totals
    assert (totals.steps, totals.idle_ns) == (2, 2 * MS)


# The machine under the ranks.


def test_samples_of_a_minute_are_kept_and_bounded(fleet):
    sent = [sample(0, at_s=number / 2) for number in range(200)]
    view = feed(fleet, *sent).ranks[0]
    assert view.samples == tuple(sent[-121:])
    assert view.sample is sent[-1]
    view = feed(fleet, *(sample(1, at_s=number / 100) for number in range(500))).ranks[1]
    assert len(view.samples) == MAX_SAMPLES
    set_back = sample(1, 0.1)
    assert feed(fleet, set_back).ranks[1].samples == (set_back,)


def moving(rank, number, link):
    """A step of 80 ms that moves so many bytes each way; the tenth ends shortly after T0."""
    return step(rank, number, start_ns=T0 + (number - 9) * 80 * MS, link_tx_bytes=link, link_rx_bytes=link)


def test_ranks_on_one_gpu_are_counted_together_while_they_run(fleet):
    gpus = ("GPU-0", "GPU-0", "GPU-2")
    for rank, gpu in enumerate(gpus):
        feed(fleet, info(rank), device(rank, gpu), moving(rank, 0, 8 * 10**8), sample(rank, 0.1))
    now = feed(fleet, sample(0, 0.2), sample(1, 0.2))
    assert [view.traffic.collectives_tx_bytes_per_s for view in now.ranks] == [20 * GB, 20 * GB, 10 * GB]
    now = feed(fleet, RankEnd(1, T0, True), sample(0, 0.6))
    assert now.ranks[0].traffic.collectives_tx_bytes_per_s == 10 * GB


def test_rank_that_stopped_holds_the_others_figures_until_all_stop(fleet, clock):
    """Uneven inputs: rank 1 has no more steps, and waits for the other as in DDP's Join."""
    feed(fleet, info(0), info(1))
    for number in range(65):
        ranks = (0, 1) if number <= 5 else (0,)
        snapshot = feed(fleet, *(step(rank, number, start_ns=T0 + number * S) for rank in ranks))
        clock.pass_s(1)
    totals = snapshot.totals
    assert (totals.step, totals.ranks, totals.first_step > 40) == (64, 1, True)
    assert [(view.stale, view.measured.step) for view in snapshot.ranks] == [(False, 64), (True, 5)]
    clock.pass_s(100)
    assert [view.stale for view in fleet.snapshot().ranks] == [True, True]
    assert (fleet.snapshot().totals.step, fleet.snapshot().totals.ranks) == (5, 2)


@pytest.mark.parametrize(
    ("ranks", "kept", "older"),
    [(2, HISTORY_STEPS, EVIDENCE_STEPS), (1024, MOST_HISTORY_STEPS // 1024, evidence_steps(1024))],
)
def test_measured_steps_are_kept_longest_and_many_ranks_share(ranks, kept, older):
    fleet = JobState(Clock())
    feed(fleet, welcome(world_size=ranks))
    for number in range(kept + 10 * older + 50):
        fleet.apply((unmeasured if number % 10 else step)(0, number))
    view = fleet.snapshot().ranks[0]
    assert (len(view.history), len(view.older)) == (kept, older)
    assert all(each.measured for each in view.older)
    assert 0 < view.history[0].step - view.older[-1].step <= 10


def test_timelines_are_bounded_and_come_back_unchanged(fleet):
    long = replaced(detail(0, 0), compute_spans_ns=tuple(range(1 << 40, (1 << 40) + 8_000)))
    view = feed(fleet, *(replaced(long, step=number) for number in range(80))).ranks[0]
    assert [each.step for each in view.details] == list(range(80 - RECENT_DETAILS, 80))
    assert sum(len(each.packed) for each in view.timelines) <= rank_state.MAX_RANK_TIMELINE_BYTES
    assert 1 < len(view.timelines) < 80
    assert view.timelines[-1].unpack() == replaced(long, step=79)


def test_stack_samples_are_bounded_and_known_once(fleet):
    sent = [stacks(0, second) for second in range(MAX_STACKS + 5)]
    assert feed(fleet, *sent).ranks[0].stacks == tuple(sent[5:])
    assert feed(fleet, welcome(), sent[-1], status()).ranks[0].stacks == tuple(sent[5:])
    assert feed(fleet, stacks(0, 7)).ranks[0].stacks == (stacks(0, 7),), "the clock was set back"
