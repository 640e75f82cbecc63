"""What ranks do together: stages of a pipeline, and groups whose ranks do not do the same."""

import pytest

from overlaptop.findings.find import find
from overlaptop.findings.finding import evidence_of
from overlaptop.findings.rules.jitter import JITTER_SHARE
from tests.fleet.pipeline import gpipe, one_forward_one_backward, seen

from .jobs import after, rules, the
from .timelines import MS, Timeline, call, job

MICRO_BATCHES = 4


def stage(compute_ms, *, micro_batches=MICRO_BATCHES, ranks=2, step_ms=100, fused=False):
    """Each rank computes for so many ms, and sends and receives once for each micro-batch."""

    def lay(rank, number):
        each_ms = step_ms / micro_batches
        busy_ms = compute_ms[rank] / micro_batches
        calls, busy = [], []
        for at in range(micro_batches):
            begin = at * each_ms
            busy.append((begin, begin + busy_ms))
            calls.append(
                call("coalesced recv_+send", begin + busy_ms, begin + each_ms - 0.1, 4, "7 mesh_pp")
            )
        return Timeline(step_ms, () if fused else tuple(busy), tuple(calls), fused=tuple(busy) * fused)

    return job(lay, ranks=ranks)


def test_bubble_is_told_with_micro_batches_that_shrink_it():
    # Four stages and four micro-batches: 3/7 of the step.
    found = the(stage([58] * 4, ranks=4), "pipeline_bubble")
    assert found.ranks == (0, 1, 2, 3)
    assert found.gain_ns == pytest.approx(100 * MS * (1 - 4 / 7 * 19 / 16), rel=0.01)
    assert "with 4 micro-batches the formula says 42.9 %" in found.measured
    assert found.advice.startswith("n_microbatches=16 leaves 15.8 %")
    assert the(stage([58] * 4, ranks=4, fused=True), "pipeline_bubble") == found


def test_stages_that_stand_far_longer_or_hardly_are_no_bubble():
    names = [{rule for rule, _ in rules(stage([busy] * 4, ranks=4))} for busy in (10, 90)]
    assert not names[0] & {"pipeline_bubble"}
    assert not names[1] & {"pipeline_bubble", "uneven_stages"}


def test_longest_stage_is_named_with_the_one_that_has_room():
    found = the(stage([50, 50, 80, 40], ranks=4), "uneven_stages")
    assert (found.ranks, found.gain_ns) == ((2,), 25 * MS * 3 / 4)
    assert found.advice.startswith(
        "move layers worth 31.2 % of its compute away from rank 2, towards rank 3"
    )


def test_exchange_between_neighbours_each_layer_is_no_pipeline():
    found = {rule for rule, _ in rules(stage([50, 80], micro_batches=40))}
    assert not found & {"pipeline_bubble", "uneven_stages"}


@pytest.mark.parametrize("together", [False, True])
def test_late_stages_that_change_are_no_jitter(together):
    evidence = evidence_of(seen(gpipe, 4, 4, together=together, steps=20))
    assert evidence.window.share > JITTER_SHARE
    assert {rule for rule, _ in rules(evidence)} == {"pipeline_bubble"}


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_more_micro_batches_win_what_the_bubble_s_finding_says(schedule, micro_batches):
    few, many = (
        evidence_of(seen(schedule, 4, number, takes=lambda _, number=number: 8 / number, steps=20))
        for number in (micro_batches, 16)
    )
    won_ns = few.step_ns - many.step_ns
    assert the(few, "pipeline_bubble").gain_ns == pytest.approx(won_ns, rel=0.15)  # transfers take as long


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize("micro_batches", [4, 8, 16])
@pytest.mark.parametrize("slow", [0, 1, 3])
def test_equal_stages_win_what_the_finding_says(schedule, micro_batches, slow):
    def lasts(takes):
        return evidence_of(seen(schedule, 4, micro_batches, takes=takes, steps=20))

    uneven, even = lasts(lambda stage: 2 if stage == slow else 1), lasts(lambda stage: 5 / 4)
    found = [each.gain_ns for each in find(uneven) if each.rule == "uneven_stages"]
    assert sum(found) == pytest.approx(uneven.step_ns - even.step_ns, rel=0.04, abs=3 * MS)


def slow_stage():
    return evidence_of(seen(gpipe, 4, 4, takes=lambda stage: 1 + 2 * (stage == 3), steps=20))


def test_stage_that_is_slow_from_the_start_has_more_layers():
    assert {rule for rule, _ in rules(slow_stage())} == {"pipeline_bubble", "uneven_stages"}


@pytest.mark.parametrize(("takes", "named"), [(1, "slow_compute"), (3, "uneven_stages")])
def test_stage_that_became_slow_has_no_more_layers(takes, named):
    earlier = evidence_of(seen(gpipe, 4, 4, takes=lambda stage: takes if stage == 3 else 1, steps=9))
    found = {rule for rule, _ in rules(after(earlier, slow_stage()))}
    assert found == {"pipeline_bubble", named}


def test_stage_that_loads_longer_has_no_more_layers():
    loads = evidence_of(
        seen(gpipe, 4, 4, takes=lambda stage: 1 + 2 * (stage == 3), steps=20, loading_ns=(0, 0, 0, 90 * MS))
    )
    assert {rule for rule, _ in rules(loads)} == {"data_loading", "pipeline_bubble"}


def reducing(sizes_of):
    """Each rank all-reduces these MiB one after the other, beside compute."""

    def lay(rank, number):
        calls = [
            call("allreduce_", 10 + 10 * at, 18 + 10 * at, mib)
            for at, mib in enumerate(sizes_of(rank, number))
        ]
        return Timeline(100, ((0, 100),), tuple(calls))

    return job(lay, ranks=3)


def test_rank_that_reduces_other_sizes_or_fewer_is_named():
    other = the(reducing(lambda rank, _: (25, 12 if rank == 1 else 25)), "ranks_differ")
    assert (other.ranks, other.gain_ns) == ((1,), None)
    assert other.measured.endswith("more 1 allreduce_ of 12.0 MiB; fewer 1 allreduce_ of 25.0 MiB")
    fewer = the(reducing(lambda rank, _: (25,) * (2 - (rank == 2))), "ranks_differ")
    assert (fewer.ranks, fewer.measured.endswith("steps: fewer 1 allreduce_ of 25.0 MiB")) == ((2,), True)


def test_ranks_that_differ_now_and_then_differ_by_a_steps_edge():
    alike = reducing(lambda rank, number: (25,) * (2 + (rank == number % 3)))
    assert "ranks_differ" not in {rule for rule, _ in rules(alike)}
    assert find(reducing(lambda rank, number: (25, 12))) == ()
