"""Where steps begin and end on the GPU's timeline."""

from dataclasses import replace

import pytest

from overlaptop.formats.steps import Step, find_steps
from tests.formats.traces import BASE_NS, US, kernel, launch, load, mark, nccl


def at(us):
    return BASE_NS + us * US


def launched(number, cpu_us, gpu_us, dur, make=kernel, **more):
    return [launch(cpu_us, number), make(gpu_us, dur, correlation=number, **more)]


@pytest.mark.parametrize(
    ("events", "steps"),
    [
        pytest.param(
            [kernel(30, 5), nccl(10, 40), kernel(20, 5)], [Step(0, at(10), at(50), None)],
            id="without annotations everything is one step",
        ),
        pytest.param(
            # The CPU is a whole step ahead: it enters step 2 at 100 µs, the GPU works on step 1 until 300.
            [
                mark(1, 0, 98), mark(2, 100, 90),
                *launched(1, 10, 20, 100), *launched(2, 20, 120, 180),
                *launched(3, 110, 305, 50), *launched(4, 120, 360, 40),
            ],
            [Step(1, at(0), at(300), 200 * US), Step(2, at(300), at(400), 210 * US)],
            id="a step begins when the GPU is through with what was launched before it",
        ),
        pytest.param(
            [mark(1, 0, 99), mark(2, 100, 100), *launched(1, 10, 15, 20), *launched(2, 110, 115, 20)],
            [Step(1, at(0), at(100), 0), Step(2, at(100), at(200), 0)],
            id="a GPU that waits for the CPU begins the step with it",
        ),
        pytest.param(
            [mark(1, 100, 50), kernel(90, 60), kernel(155, 45), *launched(1, 110, 210, 30)],
            [Step(1, at(200), at(240), 90 * US)],
            id="what was launched before the trace began comes before the first step",
        ),
        pytest.param(
            [
                mark(1, 0, 99), mark(2, 100, 200),
                *launched(1, 10, 20, 130), *launched(2, 20, 30, 400, make=nccl), *launched(3, 120, 160, 40),
            ],
            [Step(1, at(0), at(150), 50 * US), Step(2, at(150), at(300), 0)],
            id="communication that runs on does not move the boundary",
        ),
        pytest.param(
            [
                mark(1, 0, 99), mark(2, 100, 99), *launched(1, 10, 20, 100), launch(50, 2),
                {**kernel(200, 90, correlation=2), "tid": 99}, *launched(3, 150, 300, 10),
            ],
            [Step(1, at(0), at(290), 190 * US), Step(2, at(290), at(310), 111 * US)],
            id="kernels of another thread belong to the step in which they were launched",
        ),
        pytest.param(
            [
                mark(1, 0, 50), mark(7, 100, 50), *launched(1, 10, 20, 5), *launched(2, 70, 72, 5),
                *launched(3, 110, 120, 5),
            ],
            [Step(1, at(0), at(50), 0), Step(7, at(100), at(150), 0)],
            id="a missing number ends the step with its own annotation",
        ),
        pytest.param(
            [mark(1, 0, 99), mark(2, 100, 90), kernel(20, 200)],
            [Step(1, at(0), at(100), None), Step(2, at(100), at(190), None)],
            id="without launches the annotations themselves are the steps",
        ),
        pytest.param(
            [mark(1, 500, 0), mark(2, 100, 50), kernel(20, 10), kernel(520, 10)],
            [Step(2, at(100), at(150), None)],
            id="steps that run backwards or have no length are left out",
        ),
    ],
)  # fmt: skip
def test_a_step_is_what_the_gpu_did_of_it(events, steps):
    traced = load(*events)
    found = find_steps(traced.activities, traced.annotations)
    assert [replace(each, host_start_ns=None) for each in found] == steps
    entered_ns = {each.number: each.start_ns for each in traced.annotations}
    for each in found:
        known = each.launch_lead_ns is not None
        assert each.host_start_ns == (entered_ns[each.number] if known else None)
