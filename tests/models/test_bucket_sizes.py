from dataclasses import replace

import numpy as np
import pytest

from overlaptop.models.bucket_sizes import FEWEST_BY_HOST, FEWEST_STEPS, Collector, NoModel, StepModel
from overlaptop.models.buckets import MIB
from overlaptop.wire.knobs import GradientFacts
from overlaptop.wire.messages import PhaseSpan, RankEnd
from tests.fleet.builders import T0, info, step, welcome
from tests.models.ddp_job import COMPUTE, GROUP, LINK, SIZES, DdpJob

CAPS = (1, 2, 4, 10, 25, 50, 100)


def learned(job, *caps, steps=20):
    """The model after so many steps with each of the sizes, the last of which stays."""
    collector = Collector()
    for cap in caps:
        if cap != job.cap:
            job.change(cap)
        job.run(steps, collector=collector)
    return collector.model()


def why(collector):
    found = collector.model()
    assert isinstance(found, NoModel)
    return found.reason


@pytest.mark.parametrize("source", ["kernels", "host"])
def test_two_measured_sizes_predict_all_others(source):
    job = DdpJob(source=source)
    model = learned(job, 25, 4)
    assert isinstance(model, StepModel)
    for cap in CAPS:
        assert model.predict(cap).step_ns == pytest.approx(job.true(cap).step_ns, rel=0.03)
        assert model.predict(cap).exposed_ns == pytest.approx(job.true(cap).exposed_ns, rel=0.1, abs=1e6)
    assert model.link.model.alpha_ns == pytest.approx(LINK.alpha_ns, rel=0.1)
    assert model.link.model.beta_bytes_per_s == pytest.approx(LINK.beta_bytes_per_s, rel=0.05)
    assert model.compute.forward_ns == pytest.approx(COMPUTE.forward_ns, rel=0.02)
    assert model.compute.backward_ns == pytest.approx(COMPUTE.backward_ns, rel=0.02)
    assert model.compute.optimizer_ns == pytest.approx(COMPUTE.optimizer_ns, rel=0.02)
    assert (model.steps, model.layouts, model.present_mb) == (40, 2, 4)
    assert abs(model.offset_ns) < 0.02 * model.measured_ns


def test_the_best_size_of_the_model_is_hardly_worse_than_the_best_there_is():
    job = DdpJob()
    model = learned(job, 25, 4)
    chosen = min(CAPS, key=lambda cap: model.predict(cap).step_ns)
    assert job.true(chosen).step_ns <= 1.02 * min(job.true(cap).step_ns for cap in CAPS)


def test_the_present_setting_is_predicted_as_it_was_measured():
    model = learned(DdpJob(), 25, 4)
    assert model.predict(4).step_ns == model.measured_ns
    assert model.predict(25).step_ns == model.alone(25).step_ns + model.offset_ns
    assert model.predict(4).buckets == len(model.alone(4).end_ns)


def test_ranks_that_wait_for_a_late_one_do_not_make_the_link_look_slow():
    model = learned(DdpJob(late_ns=3_000_000, source="host"), 25, 4)
    assert model.link.model.beta_bytes_per_s == pytest.approx(LINK.beta_bytes_per_s, rel=0.05)
    assert model.predict(10).step_ns == pytest.approx(DdpJob().true(10).step_ns, rel=0.03)


def test_a_slowdown_by_communication_is_found_and_used():
    job = DdpJob(slowdown=0.8, noise=0.005)
    model = learned(job, 25, 10, 4, 2, 1)
    assert model.slowdown.factor == pytest.approx(0.8, abs=0.15)
    for cap in CAPS:
        assert model.predict(cap).step_ns == pytest.approx(job.true(cap).step_ns, rel=0.03)
    assert learned(DdpJob(noise=0.005), 25, 10, 4, 2, 1).slowdown is None


def test_the_scripts_own_size_keeps_its_small_first_bucket_and_no_other_has_one():
    job = DdpJob(first_cap=1 * MIB)
    model = learned(job, 25)
    assert model.alone(25).buckets.size_bytes[0] == SIZES[0]
    assert model.alone(24).buckets.size_bytes[0] > 20 * MIB


def test_gradients_that_are_too_many_to_be_told_are_taken_to_be_even():
    job = DdpJob()
    for rank in range(2):
        job.fleet.apply(GradientFacts(rank, (), 2, GROUP, None))
    model = learned(job, 25, 4)
    assert int(model.size_bytes.sum()) == sum(SIZES)
    assert model.predict(10).step_ns == pytest.approx(job.true(10).step_ns, rel=0.1)


def test_one_size_of_collectives_is_not_enough_and_another_setting_is_what_helps():
    job = DdpJob(cap=100)
    collector = Collector()
    job.run(20, collector=collector)
    assert why(collector).startswith("all collectives have one size, ")
    assert why(collector).endswith("; a search measures other bucket sizes too, and they will show it")
    job.change(10)
    job.run(20, collector=collector)
    assert isinstance(collector.model(), StepModel)


@pytest.mark.parametrize(("source", "fewest"), [("kernels", FEWEST_STEPS), ("host", FEWEST_BY_HOST)])
def test_a_few_steps_come_before_any_model(source, fewest):
    job, collector = DdpJob(source=source), Collector()
    assert why(collector) == "nothing has been seen yet"
    job.run(fewest - 1, collector=collector)
    assert why(collector) == f"{fewest - 1} of {fewest} steps were seen on all ranks at once"
    job.run(1, collector=collector)
    assert "steps were seen" not in getattr(collector.model(), "reason", "")


def test_after_a_change_the_model_stays_at_the_size_before_until_enough_steps_with_the_new_one_are_seen():
    job, collector = DdpJob(cap=4), Collector()
    job.run(20, collector=collector)
    job.change(10)
    collector.add(job.fleet.snapshot())
    assert collector.model().present_mb == 4
    job.run(FEWEST_STEPS - 1, collector=collector)
    assert collector.model().present_mb == 4
    job.run(1, collector=collector)
    model = collector.model()
    assert model.present_mb == 10
    assert model.predict(10).step_ns == model.measured_ns


def test_while_the_next_change_is_agreed_on_and_made_there_is_a_model_of_the_size_before():
    job, collector = DdpJob(cap=4), Collector()
    job.run(20, collector=collector)
    command = job.ask(10)
    for state in ("accepted", "agreed", "changing"):
        job.answer(command, state, job.at + 10)
        job.run(3, collector=collector)
        assert collector.model().present_mb == 4


def test_steps_with_a_new_size_are_not_taken_for_the_old_one_before_the_ranks_say_that_they_changed():
    job, collector = DdpJob(cap=4), Collector()
    job.run(20, collector=collector)
    command = job.ask(10)
    job.answer(command, "agreed", job.at)
    was, job.cap = job.cap, 10
    job.run(20, collector=collector)
    assert collector.model().present_mb == 4
    job.tell_knobs(ranks=(0,))  # the other one tells it later
    collector.add(job.fleet.snapshot())
    assert collector.model().present_mb == 4
    job.answer(command, "changed", job.at - 20, str(was), "10")
    collector.add(job.fleet.snapshot())  # what the knob is, the ranks say a moment later
    assert collector.model().present_mb == 10


@pytest.mark.parametrize("change_is_known", [True, False])
def test_who_joins_late_knows_the_size_from_the_last_change_or_from_the_knob(change_is_known):
    job, collector = DdpJob(cap=10 if change_is_known else 4), Collector()
    job.run(20, collector=Collector())
    if change_is_known:
        job.change(4)
    job.run(FEWEST_STEPS, collector=collector)
    assert collector.model().present_mb == 4


def test_a_change_that_failed_changes_nothing():
    job, collector = DdpJob(cap=4), Collector()
    job.run(20, collector=collector)
    command = job.ask(10)
    job.answer(command, "failed", job.at - 10)
    collector.add(job.fleet.snapshot())
    assert collector.model().present_mb == 4


def test_timelines_of_some_ranks_only_say_nothing_as_the_others_may_have_waited_less():
    job, collector = DdpJob(ranks=3), Collector()
    job.run(100, collector=collector, ranks=(0, 1))
    assert why(collector).startswith(f"0 of {FEWEST_STEPS} steps")


def test_a_step_is_taken_once_however_often_it_is_shown():
    job, collector = DdpJob(cap=4), Collector()
    job.run(FEWEST_STEPS, collector=collector)
    for _ in range(10):
        collector.add(job.fleet.snapshot())
    assert collector.model().steps == FEWEST_STEPS


def test_steps_that_a_command_disturbed_are_left_out():
    job, collector = DdpJob(), Collector()
    for at in range(10):
        for rank in range(2):
            job.fleet.apply(step(rank, at, captured=True))
            job.fleet.apply(replace(job.detail(rank, job.true(25), 1.0), step=at))
        collector.add(job.fleet.snapshot())
    assert why(collector).startswith("0 of")


def test_another_knob_makes_other_steps_and_so_does_another_job():
    job, collector = DdpJob(cap=4), Collector()
    job.run(20, collector=collector)
    job.other = 2
    job.tell_knobs()
    collector.add(job.fleet.snapshot())
    assert why(collector).startswith("0 of")
    job.run(20, collector=collector)
    assert isinstance(collector.model(), StepModel)
    job.fleet.apply(welcome(job="job-2"))
    collector.add(job.fleet.snapshot())
    assert isinstance(collector.model(), NoModel)


def test_a_rank_that_was_started_anew_makes_the_job_another_one():
    job, collector = DdpJob(), Collector()
    job.run(20, collector=collector)
    job.fleet.apply(info(0, pid=4321, source="kernels"))
    collector.add(job.fleet.snapshot())
    assert isinstance(collector.model(), NoModel)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (
            lambda job: job.fleet.apply(GradientFacts(0, tuple(SIZES), 4, GROUP, None)),
            "reduced among 4 ranks",
        ),
        (
            lambda job: job.fleet.apply(GradientFacts(0, (5,), 2, GROUP, None)),
            "a communication hook changes them",
        ),
        (lambda job: job.fleet.apply(RankEnd(1, T0, clean=False)), "and 1 are seen"),
    ],
)
def test_what_cannot_be_told_is_said(spoil, reason):
    job, collector = DdpJob(), Collector()
    spoil(job)
    job.run(10, collector=collector)
    assert reason in why(collector)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"collectives": ()}, "a step without a backward that reduces gradients"),
        ({"phases": (PhaseSpan("forward", 0, 1000),)}, "a step without a backward that reduces gradients"),
        ({"stall_spans_ns": (0, 10**12)}, "a step whose backward is nothing but waiting"),
    ],
)
def test_steps_of_no_use_are_left_out_and_said_to_be(change, reason):
    job, collector = DdpJob(), Collector()
    job.run(10, collector=collector, **change)
    assert why(collector).endswith(reason)


def test_of_several_backward_passes_the_one_that_reduces_counts():
    job, collector = DdpJob(noise=0.0, cap=4), Collector()
    true = job.true(4)
    late_ns = COMPUTE.forward_ns
    for at in range(10):
        for rank in range(2):
            usual = job.detail(rank, true, 1.0)
            first = PhaseSpan("backward", 1_000_000, late_ns - 1_000_000)
            job.fleet.apply(replace(usual, step=at, phases=(first, *usual.phases[1:])))
        collector.add(job.fleet.snapshot())
    model = collector.model()
    assert model.compute.forward_ns == late_ns
    assert model.compute.backward_ns == COMPUTE.backward_ns


def test_steps_that_come_together_are_all_learned_from():
    job, collector = DdpJob(cap=4), Collector()
    true = job.true(4)
    for rank in range(2):  # a burst on each rank, one after the other
        for at in range(FEWEST_STEPS):
            job.fleet.apply(replace(job.detail(rank, true, 1.0), step=at))
        collector.add(job.fleet.snapshot())
    assert collector.model().steps == FEWEST_STEPS


def test_ranks_that_tell_of_different_all_reduces_are_not_taken_together():
    job, collector = DdpJob(), Collector()
    for at in range(10):
        for rank in range(2):
            job.fleet.apply(replace(job.detail(rank, job.true(25 if rank else 4), 1.0), step=at))
        collector.add(job.fleet.snapshot())
    assert why(collector).endswith("ranks report different all-reduces in the same step")


def test_figures_from_elsewhere_that_make_no_step_are_no_model():
    job, collector = DdpJob(cap=4), Collector()
    job.run(10, collector=collector, step_ns=2**60)
    assert "104 days" in why(collector)


def test_gradients_without_elements_do_not_count():
    job = DdpJob()
    for rank in range(2):
        job.fleet.apply(GradientFacts(rank, (0, *SIZES, 0), 2, GROUP, None))
    assert learned(job, 25, 4).size_bytes.tolist() == SIZES


def test_what_cannot_be_a_bucket_size_is_refused():
    model = learned(DdpJob(), 25, 4)
    with pytest.raises(ValueError, match="cap must be 1 byte or more"):
        model.predict(0)
    assert np.isfinite(model.predict(10**9).step_ns)
