"""Steps that repeat others have their collectives; steps that only look as if they did have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlaptop.agent.sources.collective_join import join, launches_before
from overlaptop.agent.sources.repeated_step import RepeatedStep

from .recordings import recording

A_STEP = 36
"""Launches in each step of the recorded FSDP2 job."""


class Learned:
    """A recorded job of which one step has been looked up."""

    def __init__(self, name="fsdp2", looked_up=2, change=lambda launches, begin: launches):
        """``change(launches, begin)``: what was issued instead, of which so many before that step."""
        burst = recording(name)
        self.steps, self.launches = burst.steps(), burst.launches()
        self.looked_up, self.later = self.steps[looked_up], self.steps[-1]
        begin = launches_before(self.looked_up.intervals[0].from_unix_ns, self.launches)
        self.repeated = RepeatedStep()
        self.repeated.learn(self.looked_up, change(self.launches, begin))

    def named(self, step=None):
        return self.repeated.launches(step or self.later)


def resized(launches, first, stop):
    """The same launches, of which these moved twice as many bytes."""
    return [
        replace(each, call=replace(each.call, bytes=2 * each.call.bytes)) if first <= at < stop else each
        for at, each in enumerate(launches)
    ]


@pytest.mark.parametrize(("name", "looked_up"), [("ddp", 0), ("fsdp2", 2)])
def test_recorded_steps_repeat_each_other(name, looked_up):
    job = Learned(name, looked_up)
    for step in job.steps:
        known = join(step, job.launches).collectives
        found = join(step, job.named(step)).collectives
        assert found == tuple(replace(each, call=replace(each.call, sequence=None)) for each in known)


OTHER_LAUNCHES = {
    "every second step moves other bytes": lambda launches, begin: resized(launches, begin - A_STEP, begin),
    "every fourth step moves other bytes": lambda launches, begin: resized(
        launches, begin - 4 * A_STEP, begin - 3 * A_STEP
    ),
    "one of the steps before has one collective fewer": lambda launches, begin: (
        launches[: begin - 50] + launches[begin - 49 :]
    ),
    "the recorder goes back for fewer steps": lambda launches, begin: launches[begin - 4 * A_STEP :],
    "nothing was issued": lambda launches, begin: [],
}


@pytest.mark.parametrize("change", OTHER_LAUNCHES.values(), ids=OTHER_LAUNCHES)
def test_a_step_whose_predecessors_issued_something_else_tells_nothing_of_others(change):
    assert Learned(change=change).named() is None


def changed(step, change):
    """The step with other kernels in the first interval that has some."""
    at = next(at for at, each in enumerate(step.intervals) if len(each.kernels) > 1)
    intervals = [*step.intervals]
    intervals[at] = replace(intervals[at], kernels=tuple(change(intervals[at].kernels)))
    return replace(step, intervals=tuple(intervals))


OTHER_KERNELS = {
    "a record was dropped": lambda kernels: kernels[1:],
    "one more": lambda kernels: (*kernels, kernels[0]),
    "another communicator": lambda kernels: (kernels[0]._replace(stream=99), *kernels[1:]),
    "replayed by a CUDA graph": lambda kernels: [each._replace(replayed=True) for each in kernels],
    "another kernel": lambda kernels: (kernels[0]._replace(name="ncclDevKernel_SendRecv"), *kernels[1:]),
}


@pytest.mark.parametrize("change", OTHER_KERNELS.values(), ids=OTHER_KERNELS)
def test_a_step_with_other_kernels_is_not_named(change):
    job = Learned()
    assert job.named()
    assert job.named(changed(job.later, change)) is None


def test_a_step_whose_kernels_were_launched_in_another_phase_is_not_named():
    job = Learned()
    first, second, *rest = job.later.intervals
    moved = (replace(first, kernels=()), replace(second, kernels=first.kernels + second.kernels), *rest)
    assert first.kernels
    assert job.named(replace(job.later, intervals=moved)) is None


def test_two_communicators_whose_kernels_have_equal_names_are_told_by_their_streams():
    def on_streams(step, *streams):
        return changed(
            step,
            lambda kernels: [each._replace(stream=streams[at % 2]) for at, each in enumerate(kernels)],
        )

    job = Learned()
    repeated = RepeatedStep()
    repeated.learn(on_streams(job.looked_up, 13, 17), job.launches)
    assert repeated.launches(on_streams(job.later, 13, 17))
    assert repeated.launches(on_streams(job.later, 17, 13)) is None


def test_kernels_that_were_once_other_collectives_are_not_named_any_more_until_a_setting_is_changed():
    job = Learned()
    first = launches_before(job.later.intervals[0].from_unix_ns, job.launches)
    job.repeated.learn(job.later, resized(job.launches, first, len(job.launches)))
    assert job.named() is None
    job.repeated.learn(job.looked_up, job.launches)
    assert job.named() is None
    job.repeated.forget(0)
    job.repeated.learn(job.looked_up, job.launches)
    assert job.named()


def test_steps_before_a_setting_was_changed_tell_nothing_of_those_after_it():
    job = Learned()
    job.repeated.forget(job.later.step)
    job.repeated.learn(job.looked_up, job.launches)
    assert job.named() is None
    job.repeated.forget(job.looked_up.step)
    job.repeated.learn(job.looked_up, job.launches)
    assert job.named()
    assert job.named(job.steps[0]) is None
    idle = tuple(replace(each, kernels=()) for each in job.later.intervals)
    job.repeated.learn(replace(job.later, intervals=idle), [])
    assert job.named(), "a step without collectives changes nothing"
