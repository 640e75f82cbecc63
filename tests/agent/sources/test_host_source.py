"""The host source knows what it cannot know, and says so."""

from dataclasses import replace

import pytest

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources.assemble import MAX_MARKS
from overlaptop.agent.sources.base import CollectiveCall, Wait
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


@pytest.fixture
def source():
    made = HostSource(phases_only=False, every=1, reason="")
    made.start()
    made.boundary(0)
    return made


def issue(source, call=CALL):
    token = source.issue(lambda: call)
    if token is not None:
        source.issued(token, Done())


def wait(source, work=None):
    source.wait_end(source.wait_begin(), Wait.PURE, work)


def totals(source):
    source.boundary(0)
    [measured] = source.take()
    return reporter.totals(measured, 0, source.lost)


def lanes(step):
    return step.compute_ns, step.comm_ns, step.hidden_ns, step.exposed_ns, step.stall_ns


def test_a_collective_and_a_wait_are_measured(source):
    issue(source)
    wait(source)
    step = totals(source)
    assert None not in lanes(step)
    assert (step.collectives, step.comm_bytes, step.dropped) == (1, 64, 0)


def test_collective_ends_when_the_job_could_see_its_end(source):
    work = CallsBackLate()
    source.issued(source.issue(lambda: CALL), work)
    wait(source)
    assert source.outstanding == 1
    source.boundary(1)
    source.boundary(2)
    work.call_back()
    assert source.outstanding == 0
    first, second = (reporter.totals(each, 0, source.lost) for each in source.take())
    assert 0 < first.comm_ns < first.step_ns
    assert second.comm_ns == 0


class WithoutFuture:
    def get_future(self):
        raise RuntimeError("Work::getFuture not implemented.")


def test_call_without_a_future_lasts_until_it_is_waited_for():
    source = HostSource(phases_only=False, every=2, reason="")
    source.boundary(0)
    first, second = WithoutFuture(), WithoutFuture()
    for work in (first, second):
        source.issued(source.issue(lambda: CALL), work)
    wait(source, second)
    source.boundary(1)  # not measured
    assert source.take() == []
    wait(source, first)
    source.boundary(2)
    measured, unmeasured = (reporter.totals(each, 0, source.lost) for each in source.take())
    assert 0 < measured.exposed_ns < measured.comm_ns < measured.step_ns
    assert (unmeasured.comm_ns, source.reason) == (None, "")


UNKNOWN = {
    "its end is hidden": lambda source: source.issued(source.issue(lambda: CALL), WithoutFuture()),
    "more than 4,096 waits": lambda source: [wait(source) for _ in range(MAX_MARKS + 1)],
    "more than 4,096 collectives": lambda source: [
        (issue(source), wait(source)) for _ in range(MAX_MARKS + 9)
    ],
    "on cuda": lambda source: issue(source, ON_A_GPU),
}


@pytest.mark.parametrize(("reason", "happens"), UNKNOWN.items(), ids=UNKNOWN)
def test_step_that_cannot_be_timed_has_a_reason(source, reason, happens):
    happens(source)
    step = totals(source)
    assert (*lanes(step), step.overlap, step.dropped) == (*(None,) * 6, 0)
    assert reason in source.reason
    assert LEFT_OUT in source.reason
    assert None not in lanes(totals(source))
