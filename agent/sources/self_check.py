"""The self-check of the kernels source: a small kernel between two marks has to come back right."""

from __future__ import annotations

import numpy as np

from overlaptop.agent.clock import now_ns
from overlaptop.agent.sources.cupti.layouts import CONCURRENT_KERNEL, MEMSET, Activities
from overlaptop.agent.sources.kernel_steps import StreamMark

CLOCK_SLACK_NS = 1_000_000
"""CUPTI places the GPU's clock on the host's to some tens of microseconds."""


def fault_in(before: StreamMark, after: StreamMark, activities: Activities, clock_offset_ns: int) -> str:
    """What is wrong with the records of a mark, a kernel and a mark, launched in this order on one stream;
    empty where nothing is.

    The job's own work may lie between. `clock_offset_ns` is added to the activities' times.
    """
    values = (before.value, after.value)
    marks = activities[(activities["kind"] == MEMSET) & np.isin(activities["value"], values)]
    if sorted(marks["value"].tolist()) != sorted(values):
        return "the marks did not come back"
    marks = marks[np.argsort(marks["start_ns"])]
    if marks["value"].tolist() != list(values):
        return "the marks came back in the wrong order"
    stream, first = marks["stream"][0], marks["correlation"][0]
    launches = np.diff(marks["correlation"])[0]  # numbers of 32 bits, which wrap around
    kernels = activities[(activities["kind"] == CONCURRENT_KERNEL) & (activities["stream"] == stream)]
    between = kernels[kernels["correlation"] - first < launches]
    if marks["stream"][1] != stream or not len(between) or not between["name"].all():
        return "the kernel between the marks did not come back"
    start_ns, end_ns = marks["start_ns"].tolist()
    if between["start_ns"].min() < start_ns or between["end_ns"].max() > end_ns:
        return "the kernel between the marks is not between them in time"
    earliest_ns, latest_ns = before.host_ns - CLOCK_SLACK_NS, now_ns() + CLOCK_SLACK_NS
    if not earliest_ns <= start_ns + clock_offset_ns <= end_ns + clock_offset_ns <= latest_ns:
        return "its times are not the host's"
    return ""
