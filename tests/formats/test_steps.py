"""Where steps begin and end on the GPU's timeline."""

from overlaptop.formats.steps import Step, find_steps
from tests.formats.traces import BASE_NS, US, kernel, launch, load, mark, nccl


def steps_of(*events):
    traced = load(*events)
    return find_steps(traced.activities, traced.annotations)


def at(us):
    return BASE_NS + us * US


def launched(number, cpu_us, gpu_us, dur, make=kernel, **more):
    return [launch(cpu_us, number), make(gpu_us, dur, correlation=number, **more)]


def test_without_annotations_everything_is_one_step():
    assert steps_of(kernel(30, 5), nccl(10, 40), kernel(20, 5)) == [Step(0, at(10), at(50), None)]


def test_a_step_begins_when_the_gpu_is_through_with_what_was_launched_before_it():
    # The CPU is a whole step ahead: step 2 is entered at 100 µs, while the GPU works on step 1 until 300.
    found = steps_of(
        mark(1, 0, 98), mark(2, 100, 90),
        *launched(1, 10, 20, 100), *launched(2, 20, 120, 180),
        *launched(3, 110, 305, 50), *launched(4, 120, 360, 40),
    )  # fmt: skip
    assert found == [
        Step(1, at(0), at(300), 200 * US),
        Step(2, at(300), at(400), 210 * US),
    ]


def test_a_gpu_that_waits_for_the_cpu_begins_the_step_with_it():
    found = steps_of(
        mark(1, 0, 99), mark(2, 100, 100), *launched(1, 10, 15, 20), *launched(2, 110, 115, 20)
    )
    assert found == [Step(1, at(0), at(100), 0), Step(2, at(100), at(200), 0)]


def test_what_was_launched_before_the_trace_began_comes_before_the_first_step():
    found = steps_of(mark(1, 100, 50), kernel(90, 60), kernel(155, 45), *launched(1, 110, 210, 30))
    assert found == [Step(1, at(200), at(240), 90 * US)]


def test_communication_that_runs_on_does_not_move_the_boundary():
    found = steps_of(
        mark(1, 0, 99), mark(2, 100, 200),
        *launched(1, 10, 20, 130), *launched(2, 20, 30, 400, make=nccl), *launched(3, 120, 160, 40),
    )  # fmt: skip
    assert [(step.start_ns, step.end_ns) for step in found] == [(at(0), at(150)), (at(150), at(300))]


def test_kernels_of_another_thread_belong_to_the_step_in_which_they_were_launched():
    backward = kernel(200, 90, correlation=2)
    backward["tid"] = 99
    found = steps_of(
        mark(1, 0, 99), mark(2, 100, 99), *launched(1, 10, 20, 100), launch(50, 2), backward,
        *launched(3, 150, 300, 10),
    )  # fmt: skip
    assert found[0].end_ns == found[1].start_ns == at(290)


def test_a_missing_number_ends_the_step_with_its_own_annotation():
    found = steps_of(
        mark(1, 0, 50), mark(7, 100, 50), *launched(1, 10, 20, 5), *launched(2, 70, 72, 5),
        *launched(3, 110, 120, 5),
    )  # fmt: skip
    assert [(step.number, step.start_ns, step.end_ns) for step in found] == [
        (1, at(0), at(50)), (7, at(100), at(150)),
    ]  # fmt: skip


def test_without_launches_the_annotations_themselves_are_the_steps():
    found = steps_of(mark(1, 0, 99), mark(2, 100, 90), kernel(20, 200))
    assert found == [Step(1, at(0), at(100), None), Step(2, at(100), at(190), None)]


def test_steps_that_run_backwards_or_have_no_length_are_left_out():
    found = steps_of(mark(1, 500, 0), mark(2, 100, 50), kernel(20, 10), kernel(520, 10))
    assert [step.number for step in found] == [2]
