"""The self-check of the kernels source: right records pass, and each fault is found."""

import pytest

from overlaptop.agent.sources import kernel_steps
from overlaptop.agent.sources.kernel_steps import CLOCK_SLACK_NS, fault_in

from .recordings import Trace


@pytest.fixture(autouse=True)
def _now_is_5_us(monkeypatch):
    monkeypatch.setattr(kernel_steps, "now_ns", lambda: 5_000)


def checked(first_correlation=1):
    """The marks of a self-check, and what comes back of it: a mark, a kernel, a mark."""
    trace = Trace(first_correlation)
    trace.mark(0, 1_000)
    trace.kernel(8, 1_010, 1_020)
    trace.mark(0, 1_030)
    return trace.marks, trace.activities


@pytest.mark.filterwarnings("error")  # the job's log is not ours to fill
@pytest.mark.parametrize("first_correlation", [1, 2**32 - 1, 2**32 - 2])
def test_a_check_that_comes_back_right_has_no_fault(first_correlation):
    marks, activities = checked(first_correlation)
    assert fault_in(*marks, activities, 0) == ""
    assert fault_in(*marks, activities[::-1], 0) == ""  # in whichever order
    for offset_ns in (-2 * CLOCK_SLACK_NS, 2 * CLOCK_SLACK_NS):
        assert fault_in(*marks, activities, offset_ns) == "its times are not the host's"


@pytest.mark.parametrize(
    ("row", "field", "value", "fault"),
    [
        (0, "value", 7, "the marks did not come back"),
        (0, "start_ns", 1_040, "the marks came back in the wrong order"),
        (1, "correlation", 77, "the kernel between the marks did not come back"),
        (1, "name", 0, "the kernel between the marks did not come back"),
        (1, "stream", 13, "the kernel between the marks did not come back"),
        (1, "end_ns", 1_040, "the kernel between the marks is not between them in time"),
    ],
)
def test_each_fault_of_the_check_is_found_and_named(row, field, value, fault):
    marks, activities = checked()
    activities[row][field] = value
    assert fault_in(*marks, activities, 0) == fault
