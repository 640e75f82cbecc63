"""One rank's trace as the records of a live job, and where its steps lie on the GPU's timeline."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.formats.summary import summarize
from tests.formats.traces import PAGES, described, event, kernel, launch, load, mark, nccl
from tests.snapshots import check_page

NAMED = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 4000, "dtype": "BFloat16",
    "Process Group Name": "3", "Process Group Description": "tp",
}  # fmt: skip


def summary_of(*events, **more):
    traced = load(*events, **more)
    return summarize(traced, traced.rank or 0, "job")


def copy(ts, dur, stream=9):
    return kernel(ts, dur, "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", stream=stream)


def flux(ts, dur, stream=7):
    name = "void cutlass::device_kernel<cutlass::gemm::kernel::Sm90AGGemmUniversal<X> >()"
    return kernel(ts, dur, name, stream=stream)


def launched(number, cpu_us, gpu_us, dur, make=kernel, **more):
    return [launch(cpu_us, number), make(gpu_us, dur, correlation=number, **more)]


def ahead(us):
    """Six steps of two kernels each. The CPU's times are ahead of the GPU's."""
    for at in range(6):
        yield mark(at, 10_000 * at + us, 9_990)
        yield from launched(2 * at, 10_000 * at + 10 + us, 10_000 * at + 20, 1_500)
        yield from launched(2 * at + 1, 10_000 * at + 2_000 + us, 10_000 * at + 2_010, 3_000, nccl)


def blocked(*calls):
    """A step of 100 µs in which the CPU makes these calls."""
    made = (event("cuda_runtime", name, ts, dur) for name, ts, dur in calls)
    return [
        mark(4, 100, 100), launch(106, 2), launch(112, 3), *made, *launched(1, 100, 110, 90),
        kernel(200, 40, correlation=2), kernel(240, 5, correlation=3),
    ]  # fmt: skip


def five_steps(ms=1.99):
    for at in range(5):
        yield mark(at + 1, 2_000 * at, 1_000 * ms)
        yield from launched(at + 1, 2_000 * at + 1, 2_000 * at + 10, 1_000)


TRACES = {
    "without annotations all is one step": [kernel(30, 5), nccl(10, 40), kernel(20, 5)],
    # The CPU is a whole step ahead: it enters step 2 at 100 µs, the GPU works on step 1 until 300.
    "a step begins when the GPU is through with what was launched before": [
        mark(1, 0, 98), mark(2, 100, 90), *launched(1, 10, 20, 100), *launched(2, 20, 120, 180),
        *launched(3, 110, 305, 50), *launched(4, 120, 360, 40),
    ],
    "a GPU that waits for the CPU begins the step with it": [
        mark(1, 0, 99), mark(2, 100, 100), *launched(1, 10, 15, 20), *launched(2, 110, 115, 20),
    ],
    "what was launched before the trace comes before the first step": [
        mark(1, 100, 50), kernel(90, 60), kernel(155, 45), *launched(1, 110, 210, 30),
    ],
    "communication that runs on does not move the boundary": [
        mark(1, 0, 99), mark(2, 100, 200),
        *launched(1, 10, 20, 130), *launched(2, 20, 30, 400, nccl), *launched(3, 120, 160, 40),
    ],
    "kernels of another thread belong to the step in which they were launched": [
        mark(1, 0, 99), mark(2, 100, 99), *launched(1, 10, 20, 100), launch(50, 2),
        {**kernel(200, 90, correlation=2), "tid": 99}, *launched(3, 150, 300, 10),
    ],
    "a missing number ends the step with its own annotation": [
        mark(1, 0, 50), mark(7, 100, 50), *launched(1, 10, 20, 5), *launched(2, 70, 72, 5),
        *launched(3, 110, 120, 5),
    ],
    "without launches the annotations are the steps": [mark(1, 0, 99), mark(2, 100, 90), kernel(20, 200)],
    "steps that run backwards or have no length are left out": [
        mark(1, 500, 0), mark(2, 100, 50), kernel(20, 10), kernel(520, 10),
    ],
    "a step is cut out of the whole": [
        kernel(0, 50), nccl(40, 110), mark(4, 100, 99), mark(5, 200, 90), copy(280, 5),
        *launched(1, 100, 110, 90), *launched(2, 205, 210, 40),
    ],
    # Nor did compute wait for communication that goes on beside a fused kernel.
    "what ran beside fused kernels counts nowhere else": [
        kernel(0, 20), flux(20, 50), nccl(60, 30), nccl(100, 30), flux(120, 50),
    ],
    "collectives with names and without": [
        nccl(5, 20, **NAMED), nccl(30, 4), kernel(40, 1), nccl(50, 1, **NAMED | {"dtype": "Float4"}),
        nccl(60, 1, **NAMED | {"In msg nelems": 10**400, "Out msg nelems": -1}),
    ],
    "all collectives with names": [nccl(5, 20, **NAMED), nccl(30, 4, **NAMED)],
    "an older trace names no collective": [kernel(0, 10), nccl(5, 20)],
    "a peer copy is communication but no collective": [
        kernel(0, 10), kernel(5, 15, "Memcpy PtoP (Device -> Device)", cat="gpu_memcpy", stream=9),
    ],
    "a step annotated twice, within another, and on the GPU": [
        kernel(1, 1), mark(1, 0, 50), mark(1, 2, 10), mark(1, 20, 1, cat="gpu_user_annotation"),
        mark(2, 50, 50), mark(7, 60, 10), event("user_annotation", "ProfilerStep#x", 1, 1),
        mark(3, 100, 50, cat="gpu_user_annotation"),
    ],
    "steps that overlap": [*five_steps(ms=3)],
    "a step that ends before it begins": [*five_steps(), mark(9, 10_001, -5)],
    "a step days away": [*five_steps(), mark(9, 1e12, 2_000)],
    "a step centuries away": [*five_steps(), mark(9, 1e19, 2_000)],
    "a step around all": [*five_steps(), mark(0, -5, 10_005)],
    "a launch centuries away": [*five_steps(), launch(1e19, 77)],
    "one impossible record": [
        mark(1, 0, 1200), kernel(10, 500), kernel(510, 500), nccl(510, 600), kernel(600, 1.6e12, stream=8),
    ],
    "a kernel named like communication": [kernel(1, 5, "dispatch_kernel"), kernel(9, 5)],
    "a CPU's clock ahead of the GPU's": list(ahead(4_000)),
    "clocks that agree": list(ahead(0)),
    "a CPU that nothing blocks": blocked(("cudaMemcpyAsync", 120, 10), ("cudaStreamWaitEvent", 130, 40)),
    "a CPU blocked by synchronisation": blocked(
        ("cudaStreamSynchronize", 120, 30), ("cuCtxSynchronize", 140, 20)
    ),
    "a CPU blocked by copies": blocked(("cudaMemcpy", 120, 10), ("hipMemcpyWithStream", 130, 5)),
    "a CPU blocked into the next step": blocked(("cudaEventSynchronize", 180, 60)),
    "a CPU blocked by a full queue": blocked(("cudaLaunchKernel", 120, 60)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_becomes_the_records_of_its_page(name):
    check_page(PAGES, name, "\n".join(described(summary_of(*TRACES[name]))))


def test_a_rank_is_described_as_far_as_the_trace_does():
    devices = [{"id": 0, "name": "NVIDIA H200"}]
    known = summary_of(kernel(0, 10), rank=3, world_size=8, deviceProperties=devices)
    unknown = summary_of(kernel(0, 10), rank=None)
    assert next(described(known)) == "rank 3 of 8, NVIDIA H200, nccl 2.28.9"
    assert next(described(unknown)) == "rank 0 of 1, -, -"


RAN = st.tuples(st.integers(0, 10**6), st.integers(0, 10**5), st.sampled_from((kernel, nccl, copy, flux)))


@given(
    st.lists(RAN, min_size=1, max_size=40),
    st.lists(st.integers(0, 10**6), max_size=5, unique=True),
)
def test_a_step_is_the_sum_of_its_parts_to_the_nanosecond(activities, marks):
    # Each on a stream of its own: of one stream no two run at once.
    events = [
        make(start_ns / 1000, length_ns / 1000, stream=stream)
        for stream, (start_ns, length_ns, make) in enumerate(activities)
    ]
    events += [mark(number, start_ns / 1000, 50.0) for number, start_ns in enumerate(sorted(marks))]
    found = summary_of(*events)
    for step in found.steps:
        parts = (step.hidden_ns, step.exposed_ns, step.compute_only_ns, step.copy_only_ns, step.idle_ns)
        assert sum(parts) + step.fused_ns == step.step_ns > 0
        assert min(parts) >= 0
        assert 0 <= step.stall_ns <= step.exposed_ns
    starts = [start_ns for start_ns, _, _ in activities]
    ends = np.array(starts) + [length_ns for _, length_ns, _ in activities]
    assert found.whole.step_ns == max(ends) - min(starts)
