"""The kernels source through all its states, with a GPU and a CUPTI that are not there."""

import ctypes
import random
import threading
from itertools import cycle, pairwise, repeat
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from overlaptop.agent.reporting import reporter
from overlaptop.agent.sources import kernel_steps, kernels, naming
from overlaptop.agent.sources.base import CollectiveCall, Edge
from overlaptop.agent.sources.cupti.layouts import UnknownRecordError
from overlaptop.agent.sources.cupti.library import TOOLS, CuptiError
from overlaptop.agent.sources.flight_recorder import FlightRecorderError
from overlaptop.agent.sources.graph_captures import GraphCaptureWatch
from overlaptop.agent.sources.hooked_source import HookedSource
from overlaptop.agent.sources.kernels import KernelsSource
from overlaptop.timeline import spans
from overlaptop.timeline.lanes import LaneRules
from overlaptop.wire.joining import Watch

from .recordings import Trace

MS = 1_000_000
STEP_NS = 10 * MS
LEAD_NS = 3 * MS
GEMM = ctypes.create_string_buffer(b"nvjet_sm90_tst_256x128_64x4")
ALL_REDUCE = ctypes.create_string_buffer(
    b"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)"
)


class FakeGraph:
    captures = False

    def capture_begin(self):
        self.captures = True

    def capture_end(self):
        self.captures = False


class Gpu:
    """A device that runs what it is given some ms after its launch, and the time. To the source it is its
    Tracer, its Marker and its FlightRecorder.
    """

    clock_offset_ns = 0

    def __init__(self):
        self.now_ns = 1_800_000_000 * 10**9
        self.lead_ns = LEAD_NS
        self.tracing = self.exhausted = False
        self.holds = False
        """CUPTI keeps its buffers: the GPU has not come so far, or somebody else has taken them."""
        self.refuses_marks = self.swallows_marks = self.refuses = self.delivers_badly = False
        self.starts = self.handed_over = self.lost = self.dumps = 0
        self.recorder_fault = ""
        self.recorder_keeps = 10**6
        self.was_short = False
        self.trace, self.given = Trace(), []
        self.launches = []
        self.sizes = repeat(64)

    @property
    def outstanding(self):
        return int(self.tracing or self.holds)

    def start(self):
        if self.refuses:
            raise CuptiError("cuptiActivityEnable: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.starts += 1
        self.trace, self.given = Trace(), []
        self.tracing = True

    def stop(self):
        self.tracing = False

    def gather(self):
        if self.delivers_badly:
            raise UnknownRecordError("CUPTI delivered records of kind 3, which this agent never asks for")
        if self.holds:
            return 0
        ended_by_ns = self.now_ns if self.tracing else 2**62
        self.given.append(self.trace.take(ended_by_ns))
        return min(ended_by_ns, self.trace.earliest_ns)

    def taken(self):
        given, self.given = self.given, []
        return np.concatenate(given) if given else self.trace.take(0)

    def hand_over(self):
        self.tracing = False
        self.handed_over += 1

    def mark(self, step, edge):
        if self.refuses_marks:
            return None
        self.now_ns += 5_000
        recorded = self.tracing and not self.swallows_marks
        self.trace.mark(step, self.now_ns + self.lead_ns, edge, host_ns=self.now_ns, recorded=recorded)
        return self.trace.marks[-1]

    def event(self):
        at_ns = self.now_ns + self.lead_ns
        return SimpleNamespace(
            at_ns=at_ns,
            query=lambda: self.now_ns >= at_ns,
            elapsed_time=lambda later: (later.at_ns - at_ns) / 1e6,
        )

    def touch(self):
        self.kernel(GEMM, 1_000)

    def kernel(self, name, length_ns, *, stream=7):
        at_ns = self.now_ns + self.lead_ns
        if name is ALL_REDUCE:
            sequence, size = len(self.launches), next(self.sizes)
            call = CollectiveCall(
                "all_reduce", size, "0", True, "nccl", "cuda", -1,
                sequence=sequence, issued_ns=self.now_ns, kernels=("AllReduce",),
            )  # fmt: skip
            self.launches.append(call)
        if self.tracing:
            self.trace.kernel(ctypes.addressof(name), at_ns, at_ns + length_ns, stream=stream)

    def read(self, from_unix_ns, before_ns):
        self.dumps += 1
        if self.recorder_fault:
            raise FlightRecorderError(self.recorder_fault)
        kept = self.launches[-self.recorder_keeps :]
        oldest_ns = kept[0].issued_ns if len(kept) < len(self.launches) else 0
        if oldest_ns > from_unix_ns:
            return None
        self.was_short = oldest_ns > from_unix_ns - before_ns
        return [launch for launch in kept if launch.issued_ns >= from_unix_ns - before_ns]


def install(patch, gpu):
    for variable in TOOLS:
        patch.delenv(variable, raising=False)
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(torch.cuda, "CUDAGraph", type("Graph", (FakeGraph,), {}))  # hooks may change it
    patch.setattr(kernels, "Tracer", lambda: gpu)
    patch.setattr(kernels, "Marker", {0: gpu}.__getitem__)
    patch.setattr(naming, "FlightRecorder", lambda: gpu)
    for module in (kernels, kernel_steps):
        patch.setattr(module, "now_ns", lambda: gpu.now_ns)
    for module in (kernels, naming):
        patch.setattr(module, "monotonic", lambda: gpu.now_ns / 1e9)


class MeasuredJob:
    """A training loop, and the agent's thread that takes its steps."""

    def __init__(self, gpu, every=4, step_ns=STEP_NS):
        self.gpu = gpu
        self.step_ns = step_ns
        self.source = KernelsSource(every, 0, LaneRules())
        self.source.start()
        self.next_step = 0
        self.taken = []

    def step(self):
        gpu, source = self.gpu, self.source
        source.boundary(self.next_step)
        self.next_step += 1
        gpu.kernel(GEMM, 2 * MS)
        gpu.now_ns += self.step_ns // 2
        source.edge(Edge.BACKWARD_BEGIN)
        gpu.kernel(GEMM, 2 * MS)
        gpu.now_ns += MS
        gpu.kernel(ALL_REDUCE, 2 * MS, stream=13)
        source.edge(Edge.BACKWARD_END)
        gpu.now_ns += self.step_ns - self.step_ns // 2 - MS

    def take(self):
        steps = self.source.take()
        self.taken += steps
        return steps

    def run(self, steps):
        for _ in range(steps):
            self.step()
            self.take()

    def until(self, there, limit=200):
        for _ in range(limit):
            if there():
                return
            self.run(1)
        raise AssertionError("it never came to that")

    def until_tracing(self):
        """To within a window, some marks of which are set."""
        began = self.gpu.starts
        self.until(lambda: self.gpu.tracing and self.gpu.starts > began and len(self.gpu.trace.marks) > 1)

    def until_draining(self):
        self.until_tracing()
        self.gpu.holds = True
        self.until(lambda: not self.gpu.tracing)

    def until_checking(self):
        self.gpu.holds = True
        self.step()

    def detailed(self):
        return [each for each in self.taken if each.detailed]

    def sizes(self):
        return {collective.bytes for step in self.detailed() for collective in step.collectives}

    def recovers(self):
        done = len(self.detailed())
        self.run(60)
        return len(self.detailed()) > done and self.is_whole() and not self.source.gave_up

    def is_whole(self):
        return [each.step for each in self.taken] == list(range(len(self.taken)))


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    made = Gpu()
    install(monkeypatch, made)
    return made


@pytest.mark.parametrize("every", [1, 4])
def test_every_nth_step_is_measured_and_the_others_timed(gpu, every):
    job = MeasuredJob(gpu, every)
    job.run(400)
    assert job.source.detail_every == every
    assert job.is_whole()
    assert len(job.taken) >= 390
    measured = [each.step for each in job.detailed()]
    assert measured[0] <= 10 + every
    assert measured == [step for step in range(measured[0], len(job.taken)) if step % every == 0]
    # Besides the check: a window for each, or one for all.
    assert (gpu.starts - 1 > 300 // every) == (every > 3)
    for each in job.taken:
        assert each.end_ns - each.start_ns == pytest.approx(STEP_NS, abs=10 * 5_000)
        between = (each.phases, each.collective_count, each.launch_lead_ns)
        assert each.detailed or between == ((), None, None)
    # From the first measured one on, they are moved to when the GPU ran them.
    for each, later in pairwise(job.taken[measured[0] :]):
        assert later.start_ns == pytest.approx(each.end_ns, abs=50_000)


def test_traced_step_has_lanes_phases_and_collectives(gpu):
    job = MeasuredJob(gpu)
    assert not isinstance(job.source, HookedSource)
    job.until(job.detailed)
    step = job.detailed()[0]
    totals = reporter.totals(step, 0, 0)
    # The second product runs for 1 ms by itself and for 1 ms beside the all-reduce, which runs on for 1 ms.
    assert (totals.compute_ns, totals.comm_ns) == (4 * MS, 2 * MS)
    assert (totals.hidden_ns, totals.exposed_ns, totals.stall_ns) == (MS, MS, MS)
    assert [phase.name for phase in step.phases] == ["forward", "backward"]
    assert [(each.op, each.bytes) for each in step.collectives] == [("all_reduce", 64)]
    assert (step.comm_kernels_ns, step.matched_ns, step.named) == (2 * MS, 2 * MS, True)
    assert (step.collective_count, totals.comm_bytes) == (1, 64)
    assert step.launch_lead_ns == LEAD_NS


def test_repeated_steps_are_named_until_a_setting_changes(gpu):
    job = MeasuredJob(gpu)
    job.run(200)
    assert gpu.dumps < len(job.detailed()) / 2
    assert all(each.named and each.matched_ns == 2 * MS for each in job.detailed())
    assert job.sizes() == {64}
    calls = [collective for each in job.detailed() for collective in each.collectives]
    # Steps between look-ups may have issued more, so only steps that were looked up have numbers.
    assert 0 < sum(call.sequence is not None for call in calls) <= gpu.dumps
    dumps, gpu.sizes = gpu.dumps, repeat(32)
    job.source.settings_changed(job.next_step)
    job.taken.clear()
    job.run(100)
    assert all(step.named for step in job.detailed())
    assert job.sizes() == {32}
    assert gpu.dumps <= dumps + 3


def test_steps_that_take_turns_are_never_named_as_another_one(gpu):
    sizes = (64, 64, 64, 64, 32)
    job = MeasuredJob(gpu, every=1)
    job.source.schedule.follow(Watch(detail=True))
    gpu.sizes = cycle(sizes)
    job.run(500)
    named = [each for each in job.detailed() if each.named]
    assert len(named) >= gpu.dumps > 3
    for each in named:
        assert [one.bytes for one in each.collectives] == [sizes[each.step % len(sizes)]]


# Giving up.


TAKEN = "MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
BAD_CHECK = "CUPTI's records are not as expected: the marks did not come back"


@pytest.mark.parametrize(
    ("fault", "traced", "reason"),
    [
        ("refuses", True, TAKEN),
        ("swallows_marks", False, BAD_CHECK),
        ("swallows_marks", True, kernels.TAKEN_OVER),
        ("delivers_badly", True, "kind 3"),
        ("refuses_marks", False, "no mark can be set on the compute stream"),
    ],
)
def test_source_gives_up_with_a_reason_and_loses_no_step(gpu, fault, traced, reason):
    job = MeasuredJob(gpu)
    if traced:
        job.until_tracing()
    setattr(gpu, fault, True)
    job.until(lambda: job.source.gave_up)
    assert reason in job.source.gave_up
    assert gpu.handed_over > 0
    starts = gpu.starts
    job.run(50)
    assert not gpu.tracing
    assert gpu.starts == starts
    assert job.is_whole()


@pytest.mark.parametrize(
    ("further_steps", "gives_up"),
    [(-5, False), (5, True)],  # after the first the job validates, or waits for its data
)
def test_buffers_that_stay_away_are_given_up_late(gpu, further_steps, gives_up):
    job = MeasuredJob(gpu)
    job.until_draining()
    gpu.now_ns += 3_600 * 10**9
    job.run(kernels.DRAIN_TIMEOUT_STEPS + further_steps)
    assert job.source.gave_up == (kernels.TAKEN_OVER if gives_up else "")
    gpu.holds = False
    assert job.recovers() != gives_up


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("recorder_fault", "it is off", "it is off"), ("recorder_keeps", 1, naming.SHORT)],
)
def test_collectives_that_are_not_found_are_named_by_kernels(gpu, name, value, reason):
    setattr(gpu, name, value)
    job = MeasuredJob(gpu)
    job.run(100)
    assert 2 * gpu.dumps < len(job.detailed())
    for step in job.detailed()[2:]:
        assert (step.named, step.collective_count, step.matched_ns) == (True, 1, None)
        assert [each.bytes for each in step.collectives] == [None]
    assert job.source.reason == f"collectives have no names: {reason}"
    gpu.recorder_keeps = 1000
    job.run(150)
    found = not gpu.recorder_fault
    assert [each.bytes for each in job.detailed()[-1].collectives] == [64 if found else None]
    assert (job.source.reason == "") == found


# Something missing.


def test_only_several_windows_of_too_many_records_are_given_up(gpu):
    job = MeasuredJob(gpu)
    for _ in range(kernels.MAX_OVERFLOWS):
        assert not job.source.gave_up
        job.until_tracing()
        gpu.exhausted = True
        job.take()
        gpu.exhausted = False
        assert not gpu.tracing
    job.run(2)
    assert job.source.gave_up == kernels.OVERFLOWS
    assert job.is_whole()


def test_nothing_is_marked_while_a_graph_is_captured(gpu, monkeypatch):
    job = MeasuredJob(gpu)
    job.run(2)  # the check is done
    graph = torch.cuda.CUDAGraph()
    starts = gpu.starts
    graph.capture_begin()
    job.run(30)
    assert gpu.starts == starts
    graph.capture_end()
    assert job.recovers()
    job.until_tracing()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    marks = len(gpu.trace.marks)
    job.source.edge(Edge.BACKWARD_BEGIN)
    assert len(gpu.trace.marks) == marks


# Living with torch.profiler, and the end.


@pytest.mark.parametrize("state", ["checking", "tracing", "draining"])
def test_profiler_gets_cupti_at_once_in_each_state(gpu, state):
    job = MeasuredJob(gpu)
    getattr(job, f"until_{state}")()
    for _ in range(2):  # prepared, then enabled
        job.source.pause()
    gpu.holds = False
    assert (job.source.reason, gpu.handed_over) == (kernels.PAUSED, 1)
    starts, done = gpu.starts, len(job.detailed())
    job.run(60)
    assert not gpu.tracing
    assert (gpu.starts, len(job.detailed())) == (starts, done)
    job.source.resume()
    assert job.source.reason == ""
    assert job.recovers()
    job.until(lambda: len(job.taken) == job.next_step - 1)


# Bounds.


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_whatever_happens_each_step_comes_out_once_and_in_order(seed):
    chance = random.Random(seed)
    gpu = Gpu()

    def change(owner, name, value):
        return lambda: setattr(owner, name, value(getattr(owner, name)))

    with pytest.MonkeyPatch.context() as patch:
        install(patch, gpu)
        job = MeasuredJob(gpu, every=chance.choice([1, 2, 5, None]))
        job.run(3)  # the check is done
        graph = torch.cuda.CUDAGraph()
        happenings = {
            job.step: 12,
            job.take: 10,
            job.source.pause: 1,
            job.source.resume: 1,
            change(gpu, "holds", lambda held: True): 1,
            change(gpu, "holds", lambda held: False): 2,
            change(gpu, "lost", lambda lost: lost + 1): 0.3,
            change(gpu, "refuses_marks", lambda refuses: not refuses): 0.6,
            lambda: job.source.schedule.follow(Watch(not job.source.schedule.watched)): 0.3,
            graph.capture_begin: 0.3,
            graph.capture_end: 0.6,
            change(gpu, "now_ns", lambda now_ns: now_ns + 10**9): 0.5,  # a validation
        }
        for call in chance.choices([*happenings], [*happenings.values()], k=300):
            call()
        gpu.holds = gpu.refuses_marks = False
        graph.capture_end()
        job.source.resume()
        done = len(job.detailed())
        # A schedule that has seen slow steps waits for thousands.
        job.until(lambda: len(job.detailed()) > done, limit=30_000)
        assert job.is_whole()
        assert job.source.gave_up == ""
        for each in job.taken:
            assert each.end_ns > each.start_ns
            lanes = (4 * MS, 2 * MS) if each.detailed else (0, 0)
            assert (spans.length_ns(each.compute), spans.length_ns(each.comm)) == lanes
        job.source.stop()
        assert not gpu.tracing


def test_a_capture_waits_until_it_is_no_longer_held_off(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (FakeGraph,), {}))
    captures = GraphCaptureWatch()
    captures.install()
    graph = torch.cuda.CUDAGraph()
    thread = threading.Thread(target=graph.capture_begin)
    with captures.held_off() as free:
        assert free
        thread.start()
        thread.join(0.05)
        assert not graph.captures
    thread.join(60)
    assert graph.captures
    with captures.held_off() as free:
        assert not free
