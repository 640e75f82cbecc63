"""The kernels source through all its states, with a GPU and a CUPTI that are not there."""

from __future__ import annotations

import ctypes
import random
import threading
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources import bursts, kernels, launch_log, self_check
from overlaptop.agent.sources.base import CollectiveCall, Edge, HookedSource
from overlaptop.agent.sources.collective_join import CollectiveLaunch
from overlaptop.agent.sources.cupti.holders import TOOLS
from overlaptop.agent.sources.cupti.layouts import UnknownRecordError
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.agent.sources.flight_recorder import FlightRecorderError
from overlaptop.agent.sources.kernels import KernelsSource
from overlaptop.timeline import spans
from overlaptop.timeline.lanes import LaneRules

from .recordings import Trace

MS = 1_000_000
STEP_NS = 10 * MS
LEAD_NS = 3 * MS
GEMM = ctypes.create_string_buffer(b"nvjet_sm90_tst_256x128_64x4")
ALL_REDUCE = ctypes.create_string_buffer(
    b"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)"
)


class Gpu:
    """A device that runs what it is given some ms after its launch, its CUPTI, and the time."""

    def __init__(self):
        self.now_ns = 1_800_000_000 * 10**9
        self.refuses_marks = self.exhausted = False
        self.tracing = False
        self.holds = False
        """CUPTI keeps its buffers: the GPU has not come so far, or somebody else has taken them."""
        self.swallows_marks = False
        self.refuses = self.delivers_badly = self.fails_to_hand_over = False
        self.starts = 0
        self.handed_over = 0
        self.lost = 0
        self.gathering = None
        """Called within each `gather`."""
        self.trace = Trace()
        self.launches = []

    def mark(self, step, edge):
        if self.refuses_marks:
            return None
        self.now_ns += 5_000
        recorded = self.tracing and not self.swallows_marks
        self.trace.mark(
            step, self.now_ns + LEAD_NS, edge, host_ns=self.now_ns, unix_ns=self.now_ns, recorded=recorded
        )
        return self.trace.marks[-1]

    def kernel(self, name, length_ns, *, stream=7):
        at_ns = self.now_ns + LEAD_NS
        if name is ALL_REDUCE:
            call = CollectiveCall("all_reduce", 64, "0", True, "nccl", "cuda", -1, None)
            self.launches.append(CollectiveLaunch(call, self.now_ns, ("AllReduce",), several=False))
        if self.tracing:
            self.trace.kernel(ctypes.addressof(name), at_ns, at_ns + length_ns, stream=stream)


def install(patch, gpu):
    """Put the GPU where the source looks for one."""

    class FakeTracer:
        clock_offset_ns = 0

        @property
        def lost(self):
            return gpu.lost

        @property
        def outstanding(self):
            return int(gpu.tracing or gpu.holds)

        @property
        def exhausted(self):
            return gpu.exhausted

        @property
        def complete(self):
            return self.outstanding == 0

        def start(self):
            if gpu.refuses:
                raise CuptiError("cuptiActivityEnable: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
            gpu.starts += 1
            gpu.trace = Trace()
            gpu.tracing = True

        def stop(self):
            gpu.tracing = False

        def gather(self):
            if gpu.gathering is not None:
                gpu.gathering()
            if gpu.delivers_badly:
                raise UnknownRecordError(
                    "CUPTI delivered records of kind 3, which this agent never asks for"
                )

        def taken(self):
            return gpu.trace.activities

        def hand_over(self):
            gpu.tracing = False
            gpu.handed_over += 1

    class FakeMarker:
        def __init__(self, device):
            assert device == 0
            self.mark = gpu.mark

        def touch(self):
            gpu.kernel(GEMM, 1_000)

    class FakeRecorder:
        def read(self, from_unix_ns):
            return [launch for launch in gpu.launches if launch.unix_ns >= from_unix_ns]

    class FakeGraph:
        def capture_begin(self):
            """Begin."""

        def capture_end(self):
            """End."""

    for variable in TOOLS:
        patch.delenv(variable, raising=False)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    patch.setattr(kernels, "Tracer", FakeTracer)
    patch.setattr(kernels, "Marker", FakeMarker)
    patch.setattr(launch_log, "FlightRecorder", FakeRecorder)
    patch.setattr(kernels, "ROUND_S", 0.0)
    for module in (bursts, kernels, self_check):
        patch.setattr(module, "now_ns", lambda: gpu.now_ns)
    for module in (kernels, launch_log):
        patch.setattr(module, "monotonic", lambda: gpu.now_ns / 1e9)


class MeasuredJob:
    """A training loop, and the agent's thread that takes its steps."""

    def __init__(self, gpu, every=1, **options):
        self.gpu = gpu
        self.source = KernelsSource(every, options.get("device", 0), LaneRules())
        self.source.start()
        self.next_step = 0
        self.taken = []

    def step(self):
        """One iteration, up to its end."""
        gpu, source = self.gpu, self.source
        source.boundary(self.next_step)
        self.next_step += 1
        gpu.kernel(GEMM, 2 * MS)
        gpu.now_ns += STEP_NS // 2
        source.edge(Edge.BACKWARD_BEGIN)
        gpu.kernel(GEMM, 2 * MS)
        gpu.now_ns += MS
        gpu.kernel(ALL_REDUCE, 2 * MS, stream=13)
        source.edge(Edge.BACKWARD_END)
        gpu.now_ns += STEP_NS - STEP_NS // 2 - MS

    def take(self):
        steps = self.source.take()
        self.taken += steps
        return steps

    def run(self, steps):
        for _ in range(steps):
            self.step()
            self.take()

    def until(self, there, limit=200):
        """Run until it is so, a step and a round at a time."""
        for _ in range(limit):
            if there():
                return
            self.step()
            self.take()
        raise AssertionError("it never came to that")

    def until_tracing(self):
        """To within a burst, some marks of which are set."""
        began = self.gpu.starts
        self.until(lambda: self.gpu.tracing and self.gpu.starts > began and len(self.gpu.trace.marks) > 1)

    def numbers(self):
        return [each.step for each in self.taken]

    def detailed(self):
        return [each for each in self.taken if each.detailed]


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    made = Gpu()
    install(monkeypatch, made)
    return made


def in_thread(call):
    """Whether this comes back within some seconds on another thread."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_bursts_are_traced_and_the_steps_between_them_timed_by_the_host(gpu):
    job = MeasuredJob(gpu, every=10)
    job.run(300)
    assert job.numbers() == list(range(len(job.taken)))
    assert len(job.taken) >= 300 - 70
    flags = [each.detailed for each in job.taken]
    assert 10 < sum(flags) < len(flags) // 5
    for each in job.taken:
        assert each.end_ns - each.start_ns == pytest.approx(STEP_NS, abs=10 * 5_000)
        assert each.detailed or (each.phases, each.collective_count, each.launch_lead_ns) == (
            (),
            None,
            None,
        )


def test_a_traced_step_has_its_lanes_phases_collectives_and_launch_lead(gpu):
    job = MeasuredJob(gpu)
    job.until(job.detailed)
    step = job.detailed()[0]
    totals = reporter.totals(step, 0, 0)
    # The second product runs for 1 ms by itself and for 1 ms beside the all-reduce, which runs on for 1 ms.
    assert (totals.compute_ns, totals.comm_ns) == (4 * MS, 2 * MS)
    assert (totals.hidden_ns, totals.exposed_ns, totals.stall_ns) == (MS, MS, MS)
    parts = (totals.hidden_ns, totals.exposed_ns, totals.compute_only_ns, totals.copy_only_ns)
    assert sum(parts) + totals.idle_ns == totals.step_ns
    assert [phase.name for phase in step.phases] == ["forward", "backward"]
    assert [(each.call.op, each.call.bytes) for each in step.collectives] == [("all_reduce", 64)]
    assert (step.comm_kernels_ns, step.matched_ns, step.named) == (2 * MS, 2 * MS, True)
    assert (step.collective_count, totals.comm_bytes) == (1, 64)
    assert step.launch_lead_ns == LEAD_NS


def test_steps_timed_by_the_host_are_moved_to_when_the_gpu_ran_them(gpu):
    job = MeasuredJob(gpu, every=20)
    job.run(200)
    ends_at = [each.end_ns for each in job.taken]
    begins_at = [each.start_ns for each in job.taken]
    first = next(at for at, each in enumerate(job.taken) if each.detailed)
    gaps_ns = [
        begin - end
        for end, begin in zip(ends_at[first:], begins_at[first + 1 :], strict=False)
    ]  # fmt: skip
    assert max(map(abs, gaps_ns)) < 50_000


def test_the_source_says_how_often_it_saw_kernels_lately(gpu):
    job = MeasuredJob(gpu, every=10)
    assert job.source.detail_every == 10
    job.run(400)
    assert 5 <= job.source.detail_every <= 20


def test_it_needs_no_hook_on_collectives(gpu):
    assert not isinstance(KernelsSource(None, 0, LaneRules()), HookedSource)


def test_steps_before_the_flight_recorder_is_read_again_have_no_names_and_say_so(gpu):
    job = MeasuredJob(gpu)
    job.run(200)
    named, unnamed = (
        [each for each in job.detailed() if each.named is is_named] for is_named in (True, False)
    )
    assert named
    assert unnamed
    for each in unnamed:
        assert (each.comm_kernels_ns, each.matched_ns) == (None, None)
        assert (each.collectives, each.collective_count) == ((), 1)
        assert reporter.totals(each, 0, 0).comm_bytes is None


def test_a_dashboard_that_looks_gets_more(gpu):
    seen = []
    for watched in (False, True):
        job = MeasuredJob(gpu, every=None)
        job.source.watched = watched
        job.run(2_000)
        seen.append(len(job.detailed()))
        job.source.stop()
    assert seen[1] > 2 * seen[0] > 0


# The self-check.


def test_a_check_is_tried_again_before_the_source_gives_up(gpu):
    gpu.swallows_marks = True
    job = MeasuredJob(gpu)
    job.run(kernels.CHECKS - 1)
    assert job.source.gave_up == ""
    gpu.swallows_marks = False
    job.run(60)
    assert job.source.gave_up == ""
    assert job.detailed()


def test_a_source_whose_check_fails_gives_up_and_says_what_was_wrong(gpu):
    gpu.swallows_marks = True
    job = MeasuredJob(gpu)
    job.until(lambda: job.source.gave_up, limit=2 * kernels.CHECKS)
    assert job.source.gave_up == (
        "CUPTI's records are not what they should be: the marks did not come back"
    )
    assert job.numbers() == list(range(len(job.taken)))
    assert gpu.handed_over > 0
    assert not gpu.tracing
    starts = gpu.starts
    job.run(50)
    assert gpu.starts == starts
    assert job.detailed() == []


# Giving up.


@pytest.mark.parametrize("after_steps", [0, 40])
def test_a_cupti_that_refuses_is_given_up_with_its_own_words(gpu, after_steps):
    job = MeasuredJob(gpu)
    job.run(after_steps)
    gpu.refuses = True
    job.until(lambda: job.source.gave_up)
    assert "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" in job.source.gave_up
    assert not gpu.tracing
    assert job.numbers() == list(range(len(job.taken)))


def test_records_of_somebody_elses_are_a_reason_to_give_up(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.delivers_badly = True
    job.until(lambda: job.source.gave_up)
    assert "kind 3" in job.source.gave_up
    assert job.numbers() == list(range(len(job.taken)))


def test_marks_that_come_back_no_more_say_that_somebody_has_taken_over(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.swallows_marks = True
    job.until(lambda: job.source.gave_up)
    assert job.source.gave_up == kernels.TAKEN_OVER
    assert job.numbers() == list(range(len(job.taken)))


def test_buffers_that_stay_away_say_so_too_but_only_after_a_long_time_and_many_steps(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.holds = True
    job.until(lambda: not gpu.tracing)
    gpu.now_ns += 3_600 * 10**9  # the job validates, or waits for its data
    job.run(kernels.DRAIN_TIMEOUT_STEPS - 5)
    assert job.source.gave_up == ""
    job.run(10)
    assert job.source.gave_up == kernels.TAKEN_OVER


def test_many_short_steps_alone_do_not_try_its_patience(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.holds = True
    job.until(lambda: not gpu.tracing)
    job.run(3 * kernels.DRAIN_TIMEOUT_STEPS)  # 1.5 s
    assert job.source.gave_up == ""
    gpu.holds = False
    job.run(10)
    assert job.detailed()
    assert job.numbers() == list(range(len(job.taken)))


@pytest.mark.parametrize(
    ("variable", "tool"),
    [("NSYS_PROFILING_SESSION_ID", "Nsight Systems"), ("CUDA_INJECTION64_PATH", "a CUDA profiler")],
)
def test_a_tool_that_holds_cupti_is_a_reason_not_to_start(gpu, monkeypatch, variable, tool):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(RuntimeError, match=f"{tool} holds CUPTI"):
        MeasuredJob(gpu)


def test_a_torch_for_the_cpu_is_a_reason_not_to_start(gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="not one for CUDA"):
        MeasuredJob(gpu)


def test_without_a_flight_recorder_collectives_go_by_their_kernels_and_the_reason_says_so(gpu, monkeypatch):
    def refuse():
        raise FlightRecorderError("this torch has none")

    monkeypatch.setattr(launch_log, "FlightRecorder", refuse)
    job = MeasuredJob(gpu)
    assert job.source.reason == "collectives have no names: this torch has none"
    job.until(job.detailed)
    [step] = job.detailed()[:1]
    assert step.named
    assert [each.call.bytes for each in step.collectives] == [None]


def test_a_flight_recorder_that_fails_later_is_not_asked_again(gpu, monkeypatch):
    asked = []

    class Failing:
        def read(self, from_unix_ns):
            asked.append(from_unix_ns)
            raise FlightRecorderError("it is off")

    monkeypatch.setattr(launch_log, "FlightRecorder", Failing)
    job = MeasuredJob(gpu)
    job.run(400)
    assert len(asked) == 1
    assert job.source.reason == "collectives have no names: it is off"
    assert all(step.named for step in job.detailed()[5:])


# Something missing.


def test_a_burst_of_which_records_were_lost_has_no_lane_totals(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.lost += 1
    steps_then = job.next_step
    job.until(lambda: not gpu.tracing)
    job.run(3)
    assert job.detailed() == []
    assert job.source.lost == 1
    job.run(60)
    assert job.detailed()
    assert job.detailed()[0].step >= steps_then
    assert job.numbers() == list(range(len(job.taken)))
    assert job.source.gave_up == ""


def test_a_burst_of_which_a_mark_could_not_be_set_is_not_read(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.refuses_marks = True
    job.run(5)
    gpu.refuses_marks = False
    assert job.detailed() == []
    job.run(60)
    assert job.detailed()
    assert job.numbers() == list(range(len(job.taken)))


def test_a_stream_that_takes_no_mark_at_the_start_is_a_reason_to_give_up(gpu):
    gpu.refuses_marks = True
    job = MeasuredJob(gpu)
    job.run(1)
    assert job.source.gave_up == "no mark can be set on the compute stream"
    assert not gpu.tracing


def test_a_burst_that_holds_more_than_can_be_kept_is_ended_and_the_next_is_shorter(gpu):
    job = MeasuredJob(gpu)
    job.until(lambda: len(job.detailed()) > 50)
    job.until_tracing()
    gpu.exhausted = True
    job.take()
    assert not gpu.tracing
    gpu.exhausted = False
    lengths = []
    for _ in range(2):
        job.until_tracing()
        job.until(lambda: not gpu.tracing)
        lengths.append(sum(mark.edge is None for mark in gpu.trace.marks) - 1)
    assert lengths[0] == lengths[1] // 2
    assert job.numbers() == list(range(len(job.taken)))


def test_a_burst_that_the_job_leaves_for_something_else_is_ended(gpu):
    job = MeasuredJob(gpu)
    job.until_tracing()
    gpu.now_ns += int(0.5 * kernels.MAX_BURST_S * 1e9)
    job.take()
    assert gpu.tracing
    gpu.now_ns += int(0.6 * kernels.MAX_BURST_S * 1e9)  # a long validation
    job.take()
    assert not gpu.tracing
    starts = gpu.starts
    for _ in range(20):
        gpu.now_ns += int(kernels.MAX_BURST_S * 1e9)
        job.take()
    assert gpu.starts <= starts + 1  # and no other begins before the job steps on
    assert not gpu.tracing
    job.run(60)
    assert job.detailed()
    assert job.numbers() == list(range(len(job.taken)))


def test_no_burst_begins_while_a_graph_is_captured(gpu):
    job = MeasuredJob(gpu)
    job.run(2)  # the check is done
    graph = torch.cuda.CUDAGraph()
    starts = gpu.starts
    graph.capture_begin()
    job.run(30)
    assert gpu.starts == starts
    graph.capture_end()
    job.run(60)
    assert gpu.starts > starts
    assert job.detailed()


def test_no_edge_is_marked_while_a_graph_is_captured(gpu, monkeypatch):
    job = MeasuredJob(gpu)
    job.until_tracing()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    marks = len(gpu.trace.marks)
    job.source.edge(Edge.BACKWARD_BEGIN)
    assert len(gpu.trace.marks) == marks


# Living with torch.profiler.


def to_checking(job):
    job.gpu.holds = True
    job.step()


def to_idle(job):
    job.source.watched = False
    job.run(2)


def to_draining(job):
    job.until_tracing()
    job.gpu.holds = True
    job.until(lambda: not job.gpu.tracing)


STATES = {
    "new": lambda job: None,
    "checking": to_checking,
    "idle": to_idle,
    "tracing": MeasuredJob.until_tracing,
    "draining": to_draining,
}


@pytest.mark.parametrize("state", STATES)
def test_a_profiler_gets_cupti_at_once_in_each_state_and_the_source_comes_back_after_it(gpu, state):
    job = MeasuredJob(gpu)
    STATES[state](job)
    assert in_thread(job.source.pause)
    gpu.holds = False
    assert job.source.reason == kernels.PAUSED
    assert gpu.handed_over > 0
    assert not gpu.tracing
    starts, done = gpu.starts, len(job.detailed())
    job.run(60)
    assert gpu.starts == starts
    assert len(job.detailed()) == done
    assert in_thread(job.source.resume)
    assert job.source.reason == ""
    job.run(60)
    assert len(job.detailed()) > done
    assert job.source.gave_up == ""
    job.until(lambda: len(job.taken) == job.next_step - 1)
    assert job.numbers() == list(range(len(job.taken)))


def test_pausing_waits_for_the_agents_thread_and_no_longer(gpu):
    job = MeasuredJob(gpu)
    to_draining(job)
    within, go_on = threading.Event(), threading.Event()

    def gathering():
        within.set()
        assert go_on.wait(20)

    gpu.gathering = gathering
    agent = threading.Thread(target=job.take, daemon=True)
    agent.start()
    assert within.wait(20)
    pausing = threading.Thread(target=job.source.pause, daemon=True)
    pausing.start()
    handed_over = gpu.handed_over
    go_on.set()
    pausing.join(20)
    agent.join(20)
    assert not pausing.is_alive()
    assert not agent.is_alive()
    assert gpu.handed_over == handed_over + 1
    assert not gpu.tracing


def test_a_profiler_prepared_enabled_and_disabled_pauses_once(gpu):
    job = MeasuredJob(gpu)
    job.run(10)
    handed_over = gpu.handed_over
    job.source.pause()
    job.source.pause()
    job.source.resume()
    assert gpu.handed_over == handed_over + 1
    job.source.resume()
    job.run(60)
    assert job.detailed()


# The end, and bounds.


@pytest.mark.parametrize("state", STATES)
def test_a_source_can_be_stopped_in_each_state_and_lets_go_of_cupti(gpu, state):
    job = MeasuredJob(gpu)
    STATES[state](job)
    assert in_thread(job.source.stop)
    assert gpu.handed_over > 0
    assert not gpu.tracing


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_traced_any_more_once_it_was_stopped(gpu, state):
    job = MeasuredJob(gpu)
    STATES[state](job)
    job.source.stop()
    gpu.holds = False
    starts = gpu.starts
    job.run(30)
    assert gpu.starts == starts


def test_buffers_that_cupti_still_has_are_waited_for_at_the_end(gpu):
    job = MeasuredJob(gpu)
    assert job.source.outstanding == 0
    job.until_tracing()
    assert job.source.outstanding == 1


def test_nobody_who_takes_means_no_more_memory(gpu):
    job = MeasuredJob(gpu)
    for _ in range(kernels.MAX_WAITING_STEPS):
        job.step()
    gpu.launches.clear()
    tracemalloc.start()
    try:
        for _ in range(3_000):
            job.step()
            gpu.launches.clear()
        grown_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # The newest boundaries take the place of the oldest, a hundred bytes each.
    assert grown_bytes < kernels.MAX_WAITING_STEPS * 250
    assert job.source.lost == 3_000
    steps = job.take()
    assert [each.step for each in steps] == list(range(3_000, 3_000 + kernels.MAX_WAITING_STEPS - 1))


def test_traced_steps_that_nobody_took_in_time_are_not_kept_for_ever(gpu, monkeypatch):
    monkeypatch.setattr(kernels, "MAX_WAITING_STEPS", 8)
    job = MeasuredJob(gpu)

    def fall_behind(times):
        for _ in range(times):
            to_draining(job)
            for _ in range(20):
                job.step()
            gpu.holds = False
            gpu.launches.clear()
            job.take()
            job.take()
            job.taken.clear()

    fall_behind(10)
    tracemalloc.start()
    try:
        fall_behind(5)
        settled_bytes = tracemalloc.get_traced_memory()[0]
        fall_behind(20)
        grown_bytes = tracemalloc.get_traced_memory()[0] - settled_bytes
    finally:
        tracemalloc.stop()
    assert grown_bytes < 100_000


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_whatever_happens_each_step_comes_out_once_and_in_order(seed):
    chance = random.Random(seed)
    gpu = Gpu()
    with pytest.MonkeyPatch.context() as patch:
        install(patch, gpu)
        job = MeasuredJob(gpu, every=chance.choice([1, 2, 5, None]))
        job.run(3)  # the check is done
        graph = torch.cuda.CUDAGraph()
        happenings = {
            "step": (job.step, 12),
            "take": (job.take, 10),
            "pause": (job.source.pause, 1),
            "resume": (job.source.resume, 1),
            "held": (lambda: setattr(gpu, "holds", True), 1),
            "released": (lambda: setattr(gpu, "holds", False), 2),
            "lost": (lambda: setattr(gpu, "lost", gpu.lost + 1), 0.3),
            "marks": (lambda: setattr(gpu, "refuses_marks", not gpu.refuses_marks), 0.6),
            "watched": (lambda: setattr(job.source, "watched", not job.source.watched), 0.3),
            "capture": (graph.capture_begin, 0.3),
            "captured": (graph.capture_end, 0.6),
            "validation": (lambda: setattr(gpu, "now_ns", gpu.now_ns + 10**9), 0.5),
        }
        calls, weights = zip(*happenings.values(), strict=True)
        for call in chance.choices(calls, weights, k=300):
            call()
        gpu.holds = gpu.refuses_marks = False
        graph.capture_end()
        job.source.resume()
        done = len(job.detailed())
        job.until(
            lambda: len(job.detailed()) > done, limit=30_000
        )  # a schedule that has seen slow bursts waits two minutes
        assert job.numbers() == list(range(len(job.taken)))
        assert job.source.gave_up == ""
        for each in job.taken:
            assert each.end_ns > each.start_ns
            if each.detailed:
                totals = reporter.totals(each, 0, 0)
                assert totals.compute_ns == 4 * MS
                assert totals.comm_ns == 2 * MS
            else:
                assert spans.length_ns(each.compute) == 0
        job.source.stop()
        assert not gpu.tracing


def test_two_threads_lose_no_step(gpu):
    """The job's thread and the agent's, as they really run: at the same time."""
    job = MeasuredJob(gpu)
    done = threading.Event()

    def agent():
        while not done.is_set():
            job.take()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    pausing = random.Random(0)
    for _ in range(1_500):
        job.step()
        if pausing.random() < 0.02:
            job.source.pause()
        if pausing.random() < 0.1:
            job.source.resume()
    done.set()
    thread.join(20)
    assert not thread.is_alive()
    job.source.resume()
    job.run(100)
    assert job.numbers() == list(range(len(job.taken)))
    assert len(job.taken) > 1_500
    assert job.source.lost == 0
