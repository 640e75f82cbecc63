"""The self-check of the kernels source: right records pass, and each fault is found."""

from __future__ import annotations

import pytest

from overlaptop.agent.sources import self_check
from overlaptop.agent.sources.cupti.layouts import CONCURRENT_KERNEL, MEMSET
from overlaptop.agent.sources.self_check import CLOCK_SLACK_NS, SelfCheck

from .recordings import Trace


def checking(first_correlation=1):
    """The self-check, and what comes back of it."""
    trace = Trace(first_correlation)
    trace.mark(0, 1_000)
    trace.kernel(8, 1_010, 1_020)
    trace.mark(0, 1_030)
    return SelfCheck(*trace.marks), trace.activities


@pytest.fixture
def _now_is_5_us(monkeypatch):
    monkeypatch.setattr(self_check, "now_ns", lambda: 5_000)


checks = pytest.mark.usefixtures("_now_is_5_us")


@checks
@pytest.mark.filterwarnings("error")  # the job's log is not ours to fill
@pytest.mark.parametrize("first_correlation", [1, 2**32 - 1, 2**32 - 2])
def test_a_check_that_comes_back_right_has_no_fault(first_correlation):
    check, activities = checking(first_correlation)
    assert check.fault_in(activities, 0) == ""
    assert check.fault_in(activities[::-1], 0) == ""  # in whichever order


@checks
@pytest.mark.parametrize(
    ("row", "field", "value", "fault"),
    [
        ("before", "value", 7, "the marks did not come back"),
        ("after", "value", 7, "the marks did not come back"),
        ("after", "kind", CONCURRENT_KERNEL, "the marks did not come back"),
        ("before", "start_ns", 1_040, "the marks came back in the wrong order"),
        ("kernel", "kind", MEMSET, "the kernel between the marks did not come back"),
        ("kernel", "correlation", 77, "the kernel between the marks did not come back"),
        ("kernel", "correlation", 0, "the kernel between the marks did not come back"),
        ("kernel", "name", 0, "the kernel between the marks did not come back"),
        ("kernel", "stream", 13, "the kernel between the marks did not come back"),
        ("after", "stream", 13, "the kernel between the marks did not come back"),
        ("kernel", "start_ns", 900, "the kernel between the marks is not between them in time"),
        ("kernel", "end_ns", 1_040, "the kernel between the marks is not between them in time"),
        ("after", "start_ns", 1_015, "the kernel between the marks is not between them in time"),
    ],
)
def test_each_fault_of_the_check_is_found_and_named(row, field, value, fault):
    check, activities = checking()
    activities[("before", "kernel", "after").index(row)][field] = value
    assert check.fault_in(activities, 0) == fault


@checks
@pytest.mark.parametrize("offset_ns", [-2 * CLOCK_SLACK_NS, 2 * CLOCK_SLACK_NS])
def test_times_on_another_clock_than_the_hosts_are_found(offset_ns):
    check, activities = checking()
    assert check.fault_in(activities, offset_ns) == "its times are not the host's"


@checks
def test_a_check_that_comes_back_empty_or_twice_is_no_good():
    check, activities = checking()
    assert check.fault_in(activities[:0], 0) == "the marks did not come back"
    assert check.fault_in(activities[[0, 1, 2, 2]], 0) == "the marks did not come back"


@checks
def test_the_jobs_own_work_around_and_within_the_check_does_not_spoil_it():
    trace = Trace()
    trace.kernel(8, 900, 950)
    trace.mark(0, 1_000)
    trace.kernel(8, 980, 1_800, stream=13)
    trace.memset(1_005, 1_007, size=12, stream=13)
    trace.kernel(8, 1_010, 1_020)
    trace.memcpy(1_012, 1_090, stream=9)
    trace.mark(0, 1_030)
    trace.kernel(8, 1_040, 1_050)
    assert SelfCheck(*trace.marks).fault_in(trace.activities, 0) == ""
