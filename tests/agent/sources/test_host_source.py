"""The host source knows what it cannot know, and says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.base import CollectiveCall, Wait
from overlaptop.agent.sources.host import HostSource
from overlaptop.agent.sources.recorded_step import MAX_MARKS
from overlaptop.wire.messages import StepTotals

CALL = CollectiveCall(
    op="allreduce_",
    bytes=64,
    group="0 default_pg",
    is_async=True,
    backend="gloo",
    device_type="cpu",
    device_index=-1,
    peer=None,
)


class Done:
    """A Work that has ended."""

    def get_future(self) -> Done:
        return self

    def add_done_callback(self, callback) -> None:
        callback(self)


@pytest.fixture
def source() -> HostSource:
    made = HostSource(phases_only=False, every=1, reason="")
    made.start()
    made.boundary(0)
    return made


def issue(source: HostSource, call: CollectiveCall, work: object) -> None:
    token = source.issue(lambda: call)
    if token is not None:
        source.issued(token, work)


def totals(source: HostSource) -> StepTotals:
    """End the step; it as it is sent."""
    source.boundary(0)
    [measured] = source.take()
    return reporter.totals(measured, 0, source.lost)


def lanes(step: StepTotals) -> tuple[int | None, ...]:
    return step.compute_ns, step.comm_ns, step.hidden_ns, step.exposed_ns, step.stall_ns


def test_a_collective_and_a_wait_are_measured(source: HostSource) -> None:
    issue(source, CALL, Done())
    source.wait_end(source.wait_begin(), Wait.PURE)
    step = totals(source)
    assert None not in lanes(step)
    assert (step.collectives, step.comm_bytes, step.dropped) == (1, 64, 0)


def test_a_step_with_more_waits_than_are_kept_is_unknown_and_counted(source: HostSource) -> None:
    issue(source, CALL, Done())
    for _ in range(MAX_MARKS + 1):
        source.wait_end(source.wait_begin(), Wait.PURE)
    step = totals(source)
    assert lanes(step) == (None,) * 5
    assert step.overlap is None
    assert step.dropped == 1


def test_a_step_with_more_collectives_than_are_kept_is_unknown_and_counted(source: HostSource) -> None:
    for _ in range(MAX_MARKS + 1):
        issue(source, CALL, Done())
    step = totals(source)
    assert lanes(step) == (None,) * 5
    assert (step.collectives, step.dropped) == (MAX_MARKS + 1, 1)


@pytest.mark.parametrize("work", [None, Done()], ids=["sync", "async"])
def test_what_runs_on_a_gpu_is_never_timed_by_the_hosts_clock(source: HostSource, work: object) -> None:
    issue(source, replace(CALL, backend="nccl", device_type="cuda", device_index=0), work)
    step = totals(source)
    assert lanes(step) == (None,) * 5
    assert step.dropped == 1
    assert "cuda" in source.reason


def test_the_step_after_an_unknown_one_is_known(source: HostSource) -> None:
    issue(source, replace(CALL, backend="nccl", device_type="cuda", device_index=0), None)
    totals(source)
    assert None not in lanes(totals(source))


def test_steps_far_shorter_than_the_agents_period_are_all_kept(run_ranks) -> None:
    steps = 3000
    job = run_ranks(
        f"""
        import time
        import torch, overlaptop.agent
        for _ in range({steps}):
            overlaptop.agent.step()
            time.sleep(0.0005)
        """,
        nproc=1,
        forked=True,
    )
    assert job.codes == [0], job.errs
    assert [step.step for step in job.steps()] == list(range(steps - 1))
    assert {step.dropped for step in job.steps()} == {0}
    # To take spans out of each would cost more than a step's share.
    assert job.info().detail_every > 1
    assert 0 < sum(step.measured for step in job.steps()) < steps / 2
