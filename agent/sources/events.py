"""The events source: CUDA events on the compute stream and around collectives (CUDA, ROCm).

Events from a pool are recorded on the job's own streams. They are read at a later step boundary, once the
device has passed them: nothing here ever waits for the device.

- A collective on the current stream (``async_op=False`` with NCCL) lies between two events on that stream.
- An asynchronous one starts when it is issued, or when the previous one on its group's stream ends. Its end
  is an event on a stream of the agent that waits for its future.
- `elapsed_time` is a float32 of milliseconds, exact to 0.06 us over a second. So each step is read relative
  to its own start, and the starts are chained.
"""

import os
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.sources.base import CollectiveCall, Edge, Wait
from overlaptop.agent.sources.hooked_source import MAX_MARKS, HookedSource, RecordedCollective, RecordedStep
from overlaptop.wire.messages import LEFT_OUT

MAX_PENDING_STEPS = 32
"""Steps that the device has not finished; beyond that the oldest is dropped and counted."""
END_STREAM_PRIORITY = -2
"""torch takes streams in turn from a pool of 32 for each priority. Hardly any library uses this priority
(NCCL uses 0, FSDP -1), so no stream of the job is one that waits for collectives."""
MAX_END_STREAMS = 16
NS_PER_MS = 1_000_000
ONE_CONNECTION = (
    "phases only: with CUDA_DEVICE_MAX_CONNECTIONS=1, events around collectives would destroy the overlap "
    "they measure"
)
MPS_CONNECTIONS = (
    "phases only: under MPS a process has two hardware connections, too few for events around collectives: "
    "set CUDA_DEVICE_MAX_CONNECTIONS=8"
)

Event = Any  # torch.cuda.Event, whose stubs differ between versions


class EventsSource(HookedSource):
    """Spans by CUDA events. See sources.base.Source for the protocol."""

    name = "events"
    outstanding = 0  # a CUDA future calls back on the thread that queries it

    def __init__(
        self,
        phases_only: bool,
        every: int | None,
        device_index: int | None = None,
        budget: float | None = None,
    ) -> None:
        """Measure on `device_index`; None: on the current device, until a collective shows another."""
        reason = "" if phases_only else _too_few_connections()
        super().__init__(phases_only or bool(reason), every, reason, budget)
        self._pending: deque[RecordedStep] = deque()
        self._pool: list[Event] = []
        self._end_streams: dict[object, Any] = {}
        self._device = device_index if device_index is not None else -1
        self._device_known = device_index is not None
        self._compute: Any = None
        self._chain_ns = 0

    def start(self) -> None:
        if not torch.cuda.is_initialized():
            raise RuntimeError("the events source needs a CUDA device in use, and this job uses none")

    def stop(self) -> None:
        self._recording = None
        self._pending.clear()
        self._pool.clear()
        self._end_streams.clear()

    def boundary(self, step: int) -> None:
        """End the step before ``step``, begin ``step``, and read the steps that the device has finished."""
        if self._device < 0:
            self._device = torch.cuda.current_device()
        host_ns = now_ns()  # before the mark: the device passes it no earlier
        self._compute = torch.cuda.current_stream(self._device)
        ended = self._begin_step(step, self._record(self._compute), host_ns)
        if ended is not None:
            self._pending.append(ended)
        self._read_finished()

    def edge(self, edge: Edge) -> None:
        recording = self._recording
        if recording is not None and len(recording.edges) < MAX_MARKS and not _capturing():
            recording.edges.append((edge, self._record(self._compute)))

    def _is_captured(self, recording: RecordedStep) -> bool:
        if not _capturing():
            return False
        self._phases_only = recording.invalid = True
        self.reason = "phases only: collectives captured in a CUDA graph run without their hooks"
        return True

    def _begin(self, call: CollectiveCall, recording: RecordedStep) -> RecordedCollective | None:
        if call.device_type != "cuda":
            return None  # work on the host is not on the device's timeline
        if not self._timeable(call):
            recording.invalid = True
            return None
        stream = self._current_stream()
        return RecordedCollective(call, self._record(stream), on_compute=stream is self._compute)

    def issued(self, token: RecordedCollective, work: Any) -> None:
        """Record its end: on the current stream if it ran there, else after its future."""
        stream = self._current_stream()
        if work is None:
            token.stream_key = stream.cuda_stream
            token.end = self._record(stream)
        else:
            token.on_compute = False
            token.stream_key = (token.call.group, token.call.peer)
            end_stream = self._end_stream(token.stream_key)
            if end_stream is None or token.call.coalesced:
                self._leave_out(token, token.call.op)
            else:
                token.end = self._record_end_of(work, end_stream, stream)

    def _record_end_of(self, work: Any, end_stream: Any, stream: Any) -> Event:
        """Record on `end_stream` after this Work's future; `stream` stays the current one.

        The future's events lie on the group's stream, and its wait() makes the current stream wait for
        them. It also tells the allocator that this stream uses the results (record_stream), which delays
        the reuse of their memory a little. Work.wait() would release the tensors that the Work holds.
        """
        future = work.get_future()
        torch.cuda.set_stream(end_stream)
        try:
            future.wait()
            return self._record(end_stream)
        finally:
            torch.cuda.set_stream(stream)

    def _timeable(self, call: CollectiveCall) -> bool:
        """Whether events on this source's device can time this call; sets the reason if not."""
        if call.backend != "nccl":
            self.reason = f"steps with {call.op} on {call.backend} {LEFT_OUT}: its end is hidden"
            return False
        if call.device_index == self._device:
            return True
        if self._device_known:
            self.reason = f"steps with {call.op} on other devices than cuda:{self._device} {LEFT_OUT}"
        else:  # the job never made its device the current one: measure on it from the next step on
            self._device, self._device_known = call.device_index, True
            # Events belong to the device that recorded them first, so none can be reused.
            self.lost += 1 + len(self._pending)
            self._pending.clear()
            self._pool.clear()
        return False

    def _end_stream(self, key: object) -> Any:
        end_stream = self._end_streams.get(key)
        if end_stream is None and len(self._end_streams) < MAX_END_STREAMS:
            end_stream = self._end_streams[key] = torch.cuda.Stream(
                device=self._device, priority=END_STREAM_PRIORITY
            )
        return end_stream

    def _current_stream(self) -> Any:
        """Return the current stream: `self._compute` itself if it is current, which is the cheap case."""
        if _raw_stream(self._device) == self._compute.cuda_stream:
            return self._compute
        return torch.cuda.current_stream(self._device)

    def wait_begin(self, stream: Any = None) -> Event | None:
        """Mark a possible stall of the compute stream; waits on other streams are no stalls."""
        recording = self._recording
        if recording is None or not recording.detailed:
            return None
        if len(recording.waits) >= MAX_MARKS:
            self._overflow(recording, "waits")
            return None
        raw = stream.cuda_stream if stream is not None else _raw_stream(self._device)
        if raw != self._compute.cuda_stream or _capturing():
            return None
        return self._record(self._compute)

    def wait_end(self, token: Event, wait: Wait, work: Any = None) -> None:  # noqa: ARG002
        recording = self._recording
        if recording is None:
            return
        recording.waits.append((token, self._record(self._compute), wait))

    def _record(self, stream: Any) -> Event:
        try:
            event = self._pool.pop()
        except IndexError as fault:
            if raised_by_job(fault):
                raise
            event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _read_finished(self) -> None:
        """Read the steps that the device has passed. On the job's thread: a query from another thread
        breaks a CUDA graph capture.
        """
        while self._pending and _passed(self._pending[0]):
            self._read(self._pending.popleft())
        if len(self._pending) > MAX_PENDING_STEPS:
            self._pending.popleft()
            self._chain_ns = 0
            self.lost += 1

    def _read(self, recording: RecordedStep) -> None:
        begin = recording.begin
        # The device passed this mark after the host set it, and the end before the host saw it passed.
        # These bounds keep the chain of elapsed times from drifting.
        begin_ns = max(self._chain_ns, recording.begin_host_ns)

        def to_ns(mark: Event) -> int:
            elapsed_ms: float = begin.elapsed_time(mark)
            return begin_ns + round(elapsed_ms * NS_PER_MS)

        try:
            read = recording.converted(to_ns)
        except RuntimeError as fault:  # a mark on a stream that _passed did not query
            if raised_by_job(fault):
                raise
            self._chain_ns = 0
            self.lost += 1
            return
        self._chain_ns = min(read.end, now_ns())
        self._finish(read)
        self._release(recording)

    def _release(self, recording: RecordedStep) -> None:
        """Return a read step's events to the pool, except its end, which is the next step's begin."""
        self._pool.append(recording.begin)
        self._pool.extend(mark for _, mark in recording.edges)
        for each in recording.collectives:
            self._pool.append(each.begin)
            if not each.lost:
                self._pool.append(each.end)
        for begin, end, _ in recording.waits:
            self._pool += (begin, end)


def _too_few_connections() -> str:
    """Why this process has too few hardware connections for events around collectives; empty: enough.

    Streams that share a connection run in launch order. A timing event after a collective then delays later
    work of the compute stream, so the events destroy the overlap that they measure (pytorch issue 143890,
    TransformerEngine issue 1353).
    """
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if connections is None:
        return MPS_CONNECTIONS if under_mps() else ""
    return ONE_CONNECTION if connections == "1" else ""


def under_mps() -> bool:
    """Whether an MPS daemon's socket exists, to which CUDA connects each process."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default
    with suppress(OSError):
        return stat.S_ISSOCK(Path(folder, "control").stat().st_mode)
    return False


def _passed(recording: RecordedStep) -> bool:
    if not recording.complete:
        return False
    last = {each.stream_key: each.end for each in recording.collectives}
    marks: list[Event] = [recording.end, *last.values()]
    return all(mark.query() for mark in marks)


def _raw_stream(device: int) -> int:
    """Return the current stream's handle in 0.1 us; torch.cuda.current_stream() takes 4 us."""
    return torch._C._cuda_getCurrentRawStream(device)  # noqa: SLF001


def _capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()
