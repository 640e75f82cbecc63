"""One rank's trace as the records of a live job."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlaptop.fleet.snapshot import WHOLE_TRACE
from overlaptop.formats.summary import summarize
from overlaptop.wire.messages import CollectiveSpan
from tests.formats.traces import BASE_NS, US, event, kernel, launch, load, mark, nccl

NAMED = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 4000, "dtype": "BFloat16",
    "Process Group Name": "3", "Process Group Description": "tp",
}  # fmt: skip


def summary_of(*events, **more):
    traced = load(*events, **more)
    return summarize(traced, traced.rank or 0, "job", detailed=True)


def copy(ts, dur, stream=9):
    return kernel(ts, dur, "Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", stream=stream)


def flux(ts, dur, stream=7):
    name = "void cutlass::device_kernel<cutlass::gemm::kernel::Sm90AGGemmUniversal<X> >()"
    return kernel(ts, dur, name, stream=stream)


def test_what_ran_beside_fused_kernels_counts_nowhere_else():
    found = summary_of(kernel(0, 20), flux(20, 50), nccl(60, 30))
    whole = found.whole
    assert (whole.fused_ns, whole.compute_ns, whole.comm_ns) == (50 * US, 20 * US, 20 * US)
    assert (whole.hidden_ns, whole.exposed_ns, whole.stall_ns) == (0, 20 * US, 20 * US)
    detail = found.details[0]
    assert (detail.fused_spans_ns, detail.comm_spans_ns) == ((20 * US, 70 * US), (70 * US, 90 * US))
    # Compute did not wait for communication that goes on beside a fused kernel.
    assert summary_of(nccl(0, 30), flux(20, 50)).whole.stall_ns == 0


def test_each_step_is_cut_out_of_the_whole():
    found = summary_of(
        kernel(0, 50), nccl(40, 110),
        launch(100, 1), launch(205, 2), mark(4, 100, 99), mark(5, 200, 90),
        kernel(110, 90, correlation=1), kernel(210, 40, correlation=2),
    )  # fmt: skip
    assert [(step.step, step.compute_ns, step.comm_ns) for step in found.steps] == [
        (4, 90 * US, 50 * US), (5, 40 * US, 0),
    ]  # fmt: skip
    assert [step.overlap for step in found.steps] == [0.8, None]
    whole = found.whole
    assert (whole.step_ns, whole.comm_ns, whole.hidden_ns) == (250 * US, 110 * US, 50 * US)


def call(name, ts, dur):
    return event("cuda_runtime", name, ts, dur)


@pytest.mark.parametrize(
    ("calls", "blocked_us"),
    [
        ([], 0),
        ([call("cudaStreamSynchronize", 120, 30), call("cuCtxSynchronize", 140, 20)], 40),
        ([call("cudaMemcpy", 120, 10), call("hipMemcpyWithStream", 130, 5)], 15),
        ([call("cudaMemcpyAsync", 120, 10), call("cudaStreamWaitEvent", 130, 40)], 0),
        ([call("cudaEventSynchronize", 180, 60)], 20),
        ([launch(120, 4, dur=60)], 60),
    ],
)
def test_what_a_host_needs_for_a_step_is_without_being_blocked(calls, blocked_us):
    (step,) = summary_of(
        mark(4, 100, 100), launch(100, 1), launch(106, 2), launch(112, 3), *calls,
        kernel(110, 90, correlation=1), kernel(200, 40, correlation=2), kernel(240, 5, correlation=3),
    ).steps  # fmt: skip
    assert step.host_ns == (100 - blocked_us) * US
    (step,) = summary_of(mark(4, 100, 100), *calls, kernel(110, 90)).steps
    assert step.host_ns is None


def test_collective_has_the_name_bytes_and_group_of_its_kernel():
    found = summary_of(kernel(0, 10), nccl(5, 20, **NAMED), nccl(30, 4), kernel(40, 1))
    assert found.details[-1].collectives == (
        CollectiveSpan("allreduce", 8000, "3 tp", True, 5 * US, 25 * US),
        CollectiveSpan("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", None, "", True, 30 * US, 34 * US),
    )


PEER_COPY = kernel(5, 15, "Memcpy PtoP (Device -> Device)", cat="gpu_memcpy", stream=9)


@pytest.mark.parametrize(
    ("events", "figures"),
    [
        ([nccl(5, 20, **NAMED), nccl(30, 4, **NAMED)], (2, 16_000, 24 * US, 24 * US)),
        ([nccl(5, 20, **NAMED), nccl(30, 4)], (2, None, 24 * US, 20 * US)),
        ([nccl(5, 20)], (1, None, None, None)),  # an older trace names no collective
        ([PEER_COPY], (0, 0, None, None)),  # communication, but no collective
        ([nccl(5, 20, **NAMED | {"dtype": "Float4"})], (1, None, 20 * US, 0)),
        ([nccl(5, 20, **NAMED | {"In msg nelems": 10**400, "Out msg nelems": -1})], (1, None, 20 * US, 0)),
    ],
)
def test_what_is_known_of_collectives_is_what_their_kernels_have(events, figures):
    (step,) = summary_of(kernel(0, 10), *events).steps
    assert (step.collectives, step.comm_bytes, step.comm_kernels_ns, step.matched_ns) == figures
    assert step.comm_ns > 0


def test_info_of_a_rank_is_what_the_trace_has():
    devices = [{"id": 0, "name": "NVIDIA H200"}]
    info = summary_of(kernel(0, 10), rank=3, world_size=8, deviceProperties=devices).info
    assert (info.rank, info.world_size, info.device, info.backend) == (3, 8, "NVIDIA H200", "nccl 2.28.9")
    assert (info.source, info.compute_exact, info.source_reason) == (
        "kernels",
        True,
        "torch.profiler trace",
    )
    bare = summary_of(kernel(0, 10), rank=None).info
    assert (bare.world_size, bare.device, bare.backend) == (1, "", "")


def test_each_step_and_the_whole_trace_are_there_in_detail():
    found = summary_of(
        mark(1, 0, 50), mark(2, 50, 50), launch(1, 1), launch(51, 2),
        kernel(5, 10, correlation=1), kernel(60, 10, correlation=2), nccl(65, 20), copy(90, 5),
    )  # fmt: skip
    assert [each.step for each in found.details] == [WHOLE_TRACE, 1, 2]
    whole, _, detail = found.details
    assert (whole.start_ns, whole.step_ns) == (BASE_NS + 5 * US, 90 * US)
    assert whole.compute_spans_ns == (0, 10 * US, 55 * US, 65 * US)
    assert (detail.step, detail.start_ns, detail.step_ns) == (2, BASE_NS + 50 * US, 50 * US)
    assert detail.compute_spans_ns == (10 * US, 20 * US)
    assert detail.comm_spans_ns == (15 * US, 35 * US)
    assert detail.copy_spans_ns == (40 * US, 45 * US)
    assert detail.stall_spans_ns == (20 * US, 35 * US)


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


def test_one_impossible_record_changes_no_figure_and_is_said():
    events = mark(1, 0, 1200), kernel(10, 500), kernel(510, 500), nccl(510, 600)
    fine, found = summary_of(*events), summary_of(*events, kernel(600, 1.6e12, stream=8))
    assert (found.whole, found.steps) == (fine.whole, fine.steps)
    (said,) = found.remarks
    assert said == "1 GPU record left out: it lies an hour or more from all others, or takes as long"
    assert not fine.remarks


def test_kernels_named_like_communication_are_said():
    (said,) = summary_of(kernel(1, 5, "dispatch_kernel"), kernel(9, 5)).remarks
    assert said.endswith("if they communicate: --lane 'comm=dispatch_kernel'")


def test_a_cpu_clock_ahead_of_the_gpus_moves_no_step():
    """Each step launches two kernels; the CPU's times are 4 ms ahead."""

    def steps_of(ahead_us):
        return summary_of(*(
            each
            for at, us in enumerate(range(0, 60_000, 10_000))
            for each in (
                mark(at, us + ahead_us, 9_990),
                launch(us + 10 + ahead_us, 2 * at), kernel(us + 20, 1_500, correlation=2 * at),
                launch(us + 2_000 + ahead_us, 2 * at + 1), nccl(us + 2_010, 3_000, correlation=2 * at + 1),
            )
        ))  # fmt: skip

    sound, ahead = steps_of(0), steps_of(4_000)
    assert [step.comm_ns for step in ahead.steps] == [step.comm_ns for step in sound.steps]
    assert not sound.remarks
    (said,) = ahead.remarks
    assert said.startswith("the CPU's clock is 3.99 ms ahead of the GPU's")
