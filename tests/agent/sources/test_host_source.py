"""The host source knows what it cannot know, and says so."""

from dataclasses import replace

import pytest

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.base import CollectiveCall, Wait
from overlaptop.agent.sources.hooked_source import MAX_MARKS
from overlaptop.agent.sources.host import HostSource
from overlaptop.wire.messages import LEFT_OUT

CALL = CollectiveCall("allreduce_", 64, "0 default_pg", True, "gloo", "cpu", -1)
ON_A_GPU = replace(CALL, backend="nccl", device_type="cuda", device_index=0)


class Done:
    def get_future(self):
        return self

    def done(self):
        return True

    def add_done_callback(self, callback):
        callback(self)


class CallsBackLate(Done):
    """One whose end Python is told of when its thread gets the interpreter."""

    def add_done_callback(self, callback):
        self.call_back = lambda: callback(self)


class WithoutFuture:
    def get_future(self):
        raise RuntimeError("Work::getFuture not implemented.")


@pytest.fixture
def source():
    made = HostSource(phases_only=False, every=2, reason="")
    made.boundary(0)
    return made


def issue(source, work, call=CALL):
    token = source.issue(lambda: call)
    if token is not None:
        source.issued(token, work)


def wait(source, work=None):
    source.wait_end(source.wait_begin(), Wait.PURE, work)


def totals(source):
    return [reporter.totals(each, 0, source.lost) for each in source.take()]


def lanes(step):
    return step.compute_ns, step.comm_ns, step.hidden_ns, step.exposed_ns, step.stall_ns


def test_collective_ends_when_the_job_could_see_its_end(source):
    work = CallsBackLate()
    issue(source, work)
    wait(source)
    assert source.outstanding == 1
    source.boundary(1)
    source.boundary(2)
    source.boundary(3)
    work.call_back()
    assert source.outstanding == 0
    first, _, third = totals(source)
    assert None not in lanes(first)
    assert 0 < first.comm_ns < first.step_ns
    assert (first.collectives, first.comm_bytes, first.dropped) == (1, 64, 0)
    assert third.comm_ns == 0


def test_call_without_a_future_lasts_until_it_is_waited_for(source):
    first, second = WithoutFuture(), WithoutFuture()
    for work in (first, second):
        issue(source, work)
    wait(source, second)
    source.boundary(1)  # not measured
    assert source.take() == []
    wait(source, first)
    source.boundary(2)
    measured, unmeasured = totals(source)
    assert 0 < measured.exposed_ns < measured.comm_ns < measured.step_ns
    assert (unmeasured.comm_ns, source.reason) == (None, "")


UNKNOWN = {
    "its end is hidden": lambda source: issue(source, WithoutFuture()),
    "more than 4,096 waits": lambda source: [wait(source) for _ in range(MAX_MARKS + 1)],
    "more than 4,096 collectives": lambda source: [
        (issue(source, Done()), wait(source)) for _ in range(MAX_MARKS + 9)
    ],
    "on cuda": lambda source: issue(source, Done(), ON_A_GPU),
}


@pytest.mark.parametrize(("reason", "happens"), UNKNOWN.items(), ids=UNKNOWN)
def test_step_that_cannot_be_timed_has_a_reason(source, reason, happens):
    happens(source)
    for step in range(1, 4):
        source.boundary(step)
    unknown, _, known = totals(source)
    assert (*lanes(unknown), unknown.overlap, unknown.dropped) == (*(None,) * 6, 0)
    assert reason in source.reason
    assert LEFT_OUT in source.reason
    assert None not in lanes(known)
