"""The kernels source: every kernel and copy on the GPU, by CUPTI's own records (NVIDIA).

Steps are traced in bursts (bursts.py): tracing is switched on, a few whole steps pass between marks on the
compute stream, tracing is switched off, and once the GPU has come to the end of what was launched, CUPTI
gives back all of its buffers and the burst is read as a whole. So nothing is ever read that is not
complete, and between bursts the job runs as without an agent. Steps between bursts are timed by the host.

The job's threads set the marks, at the first boundary they switch tracing on and off for a self-check, and
while tracing is on CUPTI has one of them ask for an empty buffer now and then. All else happens on the
agent's thread, in `take`.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from enum import Enum, auto
from time import monotonic

import torch

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.job_exceptions import raised_by_job
from overlaptop.agent.isolation.threads import signals_blocked
from overlaptop.agent.sources.base import Edge, StepSpans
from overlaptop.agent.sources.bursts import Burst, Schedule
from overlaptop.agent.sources.collective_join import CollectiveLaunch, join
from overlaptop.agent.sources.cupti.holders import tool_in
from overlaptop.agent.sources.cupti.layouts import CONCURRENT_KERNEL, Activities, UnknownRecordError
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.agent.sources.cupti.tracer import Tracer
from overlaptop.agent.sources.graph_captures import GraphCaptureWatch
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import StreamMark, TracedStep, read_steps
from overlaptop.agent.sources.launch_log import LaunchLog
from overlaptop.agent.sources.marker import Marker
from overlaptop.agent.sources.self_check import fault_in
from overlaptop.timeline.lanes import LaneRules

ROUND_S = 0.1
"""The longest that `take` waits for a burst to end."""
DRAIN_TIMEOUT_S, DRAIN_TIMEOUT_STEPS = 15.0, 50
"""CUPTI may keep for so long, and so many more steps, what the GPU must by then have finished."""
MAX_BURST_S, MAX_BURST_TIMES = 5.0, 4
"""A burst that lasts so long, and so many times as long as its steps should, is given up: the job has
turned to something else."""
CHECKS = 3
"""Tries of the self-check."""
MAX_WAITING_STEPS = 4096

PAUSED = "paused: torch.profiler is running"
TAKEN_OVER = "another user of CUPTI in this process takes its records"


class _State(Enum):
    IDLE = auto()
    TRACING = auto()
    DRAINING = auto()
    """CUPTI still has buffers: of a burst, or of the self-check."""


class KernelsSource:
    """Spans by CUPTI's records. See sources.base.Source for the protocol."""

    name = "kernels"
    compute_exact = True

    def __init__(self, every: int | None, device_index: int | None, rules: LaneRules) -> None:
        """Measure on `device_index`; None: on the device that is current when it starts."""
        self.reason = ""
        self.gave_up = ""
        self.watched = False
        self._rules = rules
        self._names = KernelNames(rules)
        self._schedule = Schedule(every)
        self.detail_every = every or 1
        """The kernels are seen of one in so many steps, as it was lately."""
        self._device = device_index
        self._lock = threading.Lock()
        """Held while the state changes. Below it lie the locks of GraphCaptureWatch and Tracer."""
        self._state = _State.IDLE
        self._paused = False
        self._step = 0
        self._host_step_ns = 0
        """How long the host took for the last step."""
        self._boundaries: deque[tuple[int, int]] = deque()
        """Steps that have begun and not been reported, with the host's time of it."""
        self._traced: dict[int, StepSpans] = {}
        self._burst: Burst | None = None
        self._burst_began_s, self._burst_began_step = 0.0, -1
        self._lost_before = 0
        self._check: tuple[StreamMark, StreamMark] | None = None
        """The marks around the self-check's kernel, while its records are waited for."""
        self._checks = 0
        self._checked = False
        self._drain_began_s, self._drain_began_step = 0.0, 0
        self._captures = GraphCaptureWatch()
        self._lead_ns = 0
        self._last_first_step = 0
        self._overflowed = 0

    @property
    def lost(self) -> int:
        """Records that CUPTI dropped, and steps that were not taken in time."""
        return self._tracer.lost + self._overflowed

    @property
    def outstanding(self) -> int:
        """Callbacks that CUPTI may still make, into Python, on threads of its own and of the job's."""
        return self._tracer.outstanding

    def start(self) -> None:
        """Raises RuntimeError where CUPTI is absent, of an unknown version, or in use by another tool."""
        tool = tool_in()
        if tool is not None:
            raise RuntimeError(f"{tool} holds CUPTI")
        if torch.version.cuda is None:
            raise RuntimeError("this torch is not one for CUDA")
        self._tracer = Tracer()
        try:
            device = self._device if self._device is not None else torch.cuda.current_device()
            self._marker = Marker(device)
        except OSError as fault:
            if raised_by_job(fault):
                raise
            raise RuntimeError(f"the CUDA driver cannot be called: {fault}") from None
        self._log = LaunchLog()
        self.reason = self._log.reason
        self._captures.install()

    def stop(self) -> None:
        """Release CUPTI for good."""
        with self._lock:
            self._paused = True
            self._release()

    def pause(self) -> None:
        """Release CUPTI for a while: torch.profiler is about to take it. On a thread of the job's."""
        with self._lock:
            if not self._paused:
                self._paused = True
                self.reason = PAUSED
                self._release()

    def resume(self) -> None:
        """torch.profiler has released it."""
        with self._lock:
            self._paused = False
            self.reason = self._log.reason

    def boundary(self, step: int) -> None:
        """`step` begins here, and the one before it ends."""
        if len(self._boundaries) >= MAX_WAITING_STEPS:
            self._boundaries.popleft()
            self._overflowed += 1
        at_ns = now_ns()
        if self._boundaries:
            self._host_step_ns = at_ns - self._boundaries[-1][1]
        self._boundaries.append((step, at_ns))
        burst = self._burst
        if burst is not None:
            burst.boundary(step)
        elif self._state is _State.IDLE and not (self._checked or self._paused or self.gave_up):
            self._begin_check()
        self._step = step

    def edge(self, edge: Edge) -> None:
        """A phase begins or ends here."""
        burst = self._burst
        if burst is not None and not torch.cuda.is_current_stream_capturing():
            burst.edge(edge)

    def take(self) -> list[StepSpans]:
        """Drive the bursts on, and give the steps finished since the last call, in order."""
        burst = self._burst
        if self._state is _State.TRACING and burst is not None:
            burst.finished.wait(ROUND_S)
        elif self._state is _State.IDLE:
            self._schedule.wait(ROUND_S, watched=self.watched)
        with self._lock:
            if not self.gave_up and not self._paused:
                try:
                    self._advance()
                except (CuptiError, UnknownRecordError) as fault:
                    self._give_up(str(fault))
            return self._finished_steps()

    # The states, with the lock held.

    def _advance(self) -> None:
        if self._state is _State.IDLE:
            stepping = self._step != self._burst_began_step
            if self._checked and stepping and self._schedule.due(watched=self.watched):
                self._begin_burst()
        elif self._state is _State.TRACING:
            assert self._burst is not None
            if self._tracer.exhausted:
                self._schedule.shorten()
                self._burst.end()
            elif self._lasts_too_long():
                self._burst.end()
            if self._burst.finished.is_set():
                self._tracer.stop()
                self._schedule.traced()
                self._begin_drain()
        else:
            self._tracer.gather()
            if not self._tracer.outstanding:
                self._read(self._tracer.taken())
                self._state = _State.IDLE
            elif (
                monotonic() - self._drain_began_s > DRAIN_TIMEOUT_S
                and self._step - self._drain_began_step > DRAIN_TIMEOUT_STEPS
            ):
                self._give_up(TAKEN_OVER)

    def _begin_check(self) -> None:
        """Trace one small kernel between two marks: on the job's thread, at the first boundary."""
        with self._lock:
            try:
                signals_blocked(self._tracer.start)  # CUPTI starts a thread
                before = self._marker.mark(0, None)
                self._marker.touch()
                after = self._marker.mark(0, None)
                self._tracer.stop()
            except CuptiError as refusal:
                self._give_up(str(refusal))
                return
            if before is None or after is None:
                self._give_up("no mark can be set on the compute stream")
                return
            self._check = before, after
            self._checks += 1
            self._begin_drain()

    def _read(self, activities: Activities) -> None:
        if self._check is None:
            self._read_burst(activities)
            return
        check, self._check = self._check, None
        fault = fault_in(*check, activities, self._tracer.clock_offset_ns)
        self._checked = not fault
        if fault and self._checks == CHECKS:
            self._give_up(f"CUPTI's records are not what they should be: {fault}")

    def _begin_burst(self) -> None:
        with self._captures.held_off() as free:
            if not free:
                return
            self._lost_before = self._tracer.lost
            self._tracer.start()
        self._schedule.begin()
        self._burst_began_s, self._burst_began_step = monotonic(), self._step
        self._burst = Burst(self._marker, self._schedule.steps, self._schedule.begins_at)
        self._state = _State.TRACING

    def _lasts_too_long(self) -> bool:
        assert self._burst is not None
        expected_s = (2 * self._burst.steps + 2) * self._host_step_ns / 1e9
        return monotonic() - self._burst_began_s > max(MAX_BURST_S, MAX_BURST_TIMES * expected_s)

    def _begin_drain(self) -> None:
        self._drain_began_s, self._drain_began_step = monotonic(), self._step
        self._state = _State.DRAINING

    def _read_burst(self, activities: Activities) -> None:
        burst, self._burst = self._burst, None
        assert burst is not None
        if burst.broken or self._tracer.lost > self._lost_before:
            return  # something is missing, so each total might be wrong
        offset_ns = self._tracer.clock_offset_ns
        steps = read_steps(activities, burst.marks, self._names, self._rules, offset_ns)
        if len(steps) < burst.steps:
            self._give_up(TAKEN_OVER)
            return
        step_ns = (steps[-1].end_ns - steps[0].start_ns) / len(steps)
        self._schedule.learn(step_ns, _kernels_per_step(activities, steps, offset_ns))
        launches = self._launches(steps)
        for step in steps:
            if launches is None and self._log.reason:  # never known: collectives go by their kernels
                named = replace(join(step, []), comm_kernels_ns=None, matched_ns=None)
            else:  # or those of another step will be looked up soon
                named = step if launches is None else join(step, launches)
            self._traced[step.step] = named
        self._lead_ns = steps[-1].launch_lead_ns or 0
        self.detail_every = max(1, round((steps[0].step - self._last_first_step) / len(steps)))
        self._last_first_step = steps[0].step

    def _launches(self, steps: list[TracedStep]) -> list[CollectiveLaunch] | None:
        """What the host issued in these steps; None when it is not due to be read, or not known."""
        if not any(interval.kernels for step in steps for interval in step.intervals):
            return []
        began_s = self._schedule.began_s
        if not self._log.due(began_s, watched=self.watched):
            return None
        with self._captures.held_off() as free:
            if not free:
                return None
            launches = self._log.read(began_s, steps[0].intervals[0].from_unix_ns)
        self.reason = self._log.reason
        return launches

    def _give_up(self, why: str) -> None:
        """Have the agent take another source."""
        self.gave_up = why
        self._release()

    def _release(self) -> None:
        """Drop the burst under way, whose steps are then timed by the host, and release CUPTI."""
        if self._burst is not None:
            self._burst.end()
            self._burst = None
        self._state, self._check = _State.IDLE, None
        self._tracer.hand_over()

    def _finished_steps(self) -> list[StepSpans]:
        """The steps that have ended, up to the first whose burst has not been read yet."""
        finished: list[StepSpans] = []
        while len(self._boundaries) > 1 and self._burst is None:
            (step, begin_ns), (_, end_ns) = self._boundaries[0], self._boundaries[1]
            self._boundaries.popleft()
            traced = self._traced.pop(step, None)
            self._schedule.note(end_ns - begin_ns, traced=traced is not None)
            # Of a step between bursts only the length is known, by the host's clock.
            lead_ns = self._lead_ns
            finished.append(traced or StepSpans(step, begin_ns + lead_ns, end_ns + lead_ns, (), None))
        if self._burst is None:
            self._traced.clear()  # what is left is of steps that were not taken in time
        return finished


def _kernels_per_step(activities: Activities, steps: list[TracedStep], clock_offset_ns: int) -> float:
    starts_ns = activities["start_ns"][activities["kind"] == CONCURRENT_KERNEL] + clock_offset_ns
    within = (starts_ns >= steps[0].start_ns) & (starts_ns < steps[-1].end_ns)
    return float(within.sum()) / len(steps)
