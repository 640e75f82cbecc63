"""The kernels source: every kernel and copy on the GPU, from CUPTI's records (NVIDIA).

The schedule chooses steps, which are traced in windows (window.py). Tracing is switched on, whole steps
pass between marks on the compute stream, and tracing is switched off. CUPTI returns its buffers as they
become complete. A step is read once all buffers are back that were in use before the GPU reached the step's
end. So only complete data is read, and between windows the job runs as without an agent. The host times the
steps between windows.

The job's threads set the marks and switch tracing on and off at step boundaries, and once for a self-check.
Everything else happens on the agent's thread, in `take`.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum, auto
from time import monotonic

import torch

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.threads import signals_blocked
from overlaptop.agent.sources.base import MAX_WAITING_STEPS, Edge, StepSpans
from overlaptop.agent.sources.cupti.layouts import UnknownRecordError
from overlaptop.agent.sources.cupti.library import CuptiError, tool_in
from overlaptop.agent.sources.cupti.tracer import Tracer
from overlaptop.agent.sources.graph_captures import GraphCaptureWatch
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import StreamMark, TracedStep, fault_in
from overlaptop.agent.sources.naming import CollectiveNaming
from overlaptop.agent.sources.schedule import Estimate, Schedule
from overlaptop.agent.sources.window import LEAD_STEPS, Marker, Window
from overlaptop.timeline import coherence
from overlaptop.timeline.lanes import LaneRules, describe_look_alikes
from overlaptop.wire.messages import IssuedCall

DRAIN_TIMEOUT_S, DRAIN_TIMEOUT_STEPS = 15.0, 50
"""CUPTI may hold records of finished work this long, and for this many further steps."""
PAUSE_S, PAUSE_TIMES = 5.0, 4
"""A step longer than both (seconds, and times the previous step) ends the window: the job is doing
something else. It does not count while the GPU is still at earlier steps."""
MAX_OVERFLOWS = 3  # Consecutive windows with more records than can be kept: one may hold an evaluation
COST, LAUNCH_BOUND_COST = Estimate(0.005, 0.01), Estimate(0.1, 0.08)
"""Cost of tracing a step, for any job and for launch-bound jobs. In the latter each launch is slower, and
nothing hides that (benchmarks/README.md)."""
CHECKS = 3  # Tries of the self-check
MAX_BOUNDS = 256
BOUND_PERIOD_NS = 250_000_000
"""Longest time between two notes of the GPU's time, so that a changed step length is soon seen."""
NS_PER_MS = 1_000_000

PAUSED = "paused: torch.profiler is running"
OVERFLOWS = "steps hold more kernels than can be kept"
TAKEN_OVER = "another user of CUPTI in this process takes its records"


class _State(Enum):
    IDLE = auto()
    TRACING = auto()
    DRAINING = auto()  # CUPTI still has buffers of a window or of the self-check


class KernelsSource:
    """Spans by CUPTI's records. See sources.base.Source for the protocol."""

    name = "kernels"
    compute_exact = True
    outstanding = 0  # CUPTI's callbacks are not Python's

    def __init__(
        self, every: int | None, device_index: int | None, rules: LaneRules, budget: float | None = None
    ) -> None:
        """Measure on `device_index`; None: on the current device at the start."""
        self.reason = ""
        self.gave_up = ""
        self.remarks: deque[str] = deque()
        self._remarked: set[str] = set()
        self._rules = rules
        self._names = KernelNames(rules)
        self.schedule = Schedule(every, COST, LEAD_STEPS, budget)
        self._device = device_index
        self._lock = threading.Lock()
        """Held while the state changes. The locks of GraphCaptureWatch and Tracer are taken inside it."""
        self._state = _State.IDLE
        self._paused = False
        self._step = 0
        self._host_step_ns = 0
        self._boundaries: deque[tuple[int, int, bool | None]] = deque()
        """Steps begun and not reported, with the host's time, and `_worked` at that time or None if the
        source was paused."""
        self._worked = False  # Whether it was tracing or reading when the last step began
        self._bounds: deque[tuple[int, torch.cuda.Event]] = deque(maxlen=MAX_BOUNDS)
        """CUDA events at the beginning of steps at which the source begins or ends its work, or
        BOUND_PERIOD_NS after the last one."""
        self._bound_ns = 0  # Host time of the last of these
        self._unnoted: deque[tuple[int, int, bool]] = deque(maxlen=MAX_WAITING_STEPS)
        """Finished steps to pass to the schedule: number, ns by the host's clock, and whether the source
        worked in it."""
        self._measured: dict[int, StepSpans] = {}
        self._window: Window | None = None
        self._progress_s, self._progress_step = 0.0, 0
        """When a step was last read, or the window began or ended, and the job's step at that time."""
        self._lost_before = 0
        self._check: tuple[StreamMark, StreamMark] | None = None
        """The marks around the self-check's kernel, while its records are awaited."""
        self._checks = 0
        self._checked = False
        self._captures = GraphCaptureWatch()
        self._lead_ns = 0
        self._overflowed = 0  # Steps that were not taken in time
        self._overflows = 0  # Consecutive windows with too many records

    @property
    def detail_every(self) -> int:
        return self.schedule.every

    @property
    def lost(self) -> int:
        """Records that CUPTI dropped, and steps that were not taken in time."""
        return self._tracer.lost + self._overflowed

    def start(self) -> None:
        """Raises RuntimeError if CUPTI is absent, of an unknown version, or used by another tool."""
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
        self._naming = CollectiveNaming(self._captures)
        self.reason = self._naming.reason
        self._captures.install()

    def stop(self) -> None:
        with self._lock:
            self._paused = True
            self._release()

    def pause(self) -> None:
        """Release CUPTI for a while: torch.profiler is about to take it. On a job thread."""
        with self._lock:
            if not self._paused:
                self._paused = True
                self.reason = PAUSED
                self._release()

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            self.reason = self._naming.reason

    def boundary(self, step: int) -> None:
        if len(self._boundaries) >= MAX_WAITING_STEPS:
            self._boundaries.popleft()
            self._overflowed += 1
        at_ns = now_ns()
        if self._boundaries:
            self._host_step_ns = at_ns - self._boundaries[-1][1]
        worked, self._worked = self._worked, self._state is not _State.IDLE
        self._boundaries.append((step, at_ns, None if self._paused else self._worked))
        window = self._window
        if window is not None:
            window.boundary(step)
            if window.finished.is_set():
                self._if_free(self._switch_off)
        elif self._state is _State.IDLE and not (self._paused or self.gave_up):
            if not self._checked:
                self._begin_check()
            elif self.schedule.measures(step + LEAD_STEPS):
                self._if_free(self._begin_window)
        turns = not self._worked and (worked or self._state is not _State.IDLE)
        if (turns or at_ns - self._bound_ns > BOUND_PERIOD_NS) and not (self._paused or self.gave_up):
            self._bound_ns = at_ns
            self._bounds.append((step, self._marker.event()))
        self._step = step

    def edge(self, edge: Edge) -> None:
        window = self._window
        if window is not None and not torch.cuda.is_current_stream_capturing():
            window.edge(edge)

    def take(self) -> list[StepSpans]:
        """Advance the windows, and return the steps finished since the last call, in order."""
        with self._lock:
            if not self.gave_up and not self._paused:
                try:
                    self._gather()
                except (CuptiError, UnknownRecordError) as fault:
                    self._give_up(str(fault))
            finished = self._finished_steps()
            self._note_steps()
            return finished

    # The states, with the lock held.

    def _gather(self) -> None:
        if self._state is _State.IDLE:
            return
        until_ns = self._tracer.gather()
        steps = self._read_window(until_ns)
        if steps:
            self._take_in(steps)
        window = self._window
        if self._state is _State.TRACING and window is not None:
            if self._tracer.exhausted or window.overflows:
                self._overflows += 1
                window.end()
            elif self._is_paused():
                window.end()
            if window.finished.is_set():
                self._switch_off()
        elif not self._tracer.outstanding:
            if self._check is not None:
                self._end_check()
            else:
                self._end_window()
            return
        self._check_progress()

    def _is_paused(self) -> bool:
        paused_s = (now_ns() - self._boundaries[-1][1]) / 1e9 if self._boundaries else 0.0
        if self._window is not None and self._window.pending:  # the host alone may be waiting
            paused_s = min(paused_s, monotonic() - self._progress_s)
        return paused_s > max(PAUSE_S, PAUSE_TIMES * self._host_step_ns / 1e9)

    def _check_progress(self) -> None:
        """Give up if records do not arrive long after the GPU must have finished."""
        window = self._window
        if self._state is _State.TRACING and not (window and window.pending):
            self._note_progress()
        overdue = monotonic() - self._progress_s > DRAIN_TIMEOUT_S
        if overdue and self._step - self._progress_step > DRAIN_TIMEOUT_STEPS:
            self._give_up(TAKEN_OVER)

    def _note_progress(self) -> None:
        self._progress_s, self._progress_step = monotonic(), self._step

    def _begin_check(self) -> None:
        """Trace one small kernel between two marks, on the job's thread at the first boundary."""
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
            self._state = _State.DRAINING
            self._note_progress()

    def _end_check(self) -> None:
        assert self._check is not None
        check, self._check = self._check, None
        self._state = _State.IDLE
        fault = fault_in(*check, self._tracer.taken(), self._tracer.clock_offset_ns)
        self._checked = not fault
        if fault and self._checks == CHECKS:
            self._give_up(f"CUPTI's records are not as expected: {fault}")

    def _if_free(self, switch: Callable[[], None]) -> None:
        """Switch tracing on or off on a job thread without waiting for the agent's thread. If that holds
        the lock, tracing begins a step later, and ends when it is done.
        """

        def switch_locked() -> None:
            with self._lock:
                if not (self._paused or self.gave_up):
                    try:
                        switch()
                    except CuptiError as refusal:
                        self._give_up(str(refusal))

        if not self._lock.locked():
            run_to_completion(switch_locked)

    def _begin_window(self) -> None:
        with self._captures.held_off() as free:
            if not free or self._state is not _State.IDLE:
                return
            self._lost_before = self._tracer.lost
            signals_blocked(self._tracer.start)
        self._window = Window(self._marker, self.schedule.measures)
        self._note_progress()
        self._state = _State.TRACING

    def _switch_off(self) -> None:
        if self._state is _State.TRACING:
            self._tracer.stop()
            self._note_progress()
            self._state = _State.DRAINING

    def _end_window(self) -> None:
        window, self._window = self._window, None
        self._state = _State.IDLE
        if self._overflows >= MAX_OVERFLOWS:
            self._give_up(OVERFLOWS)
        elif window is not None and window.pending and not window.broken:
            self._give_up(TAKEN_OVER)

    def _read_window(self, until_ns: int) -> list[TracedStep]:
        window = self._window
        if window is None:
            return []
        if self._tracer.lost > self._lost_before:
            window.end()  # records are missing, so any total might be wrong
        if window.broken:
            return []
        offset_ns = self._tracer.clock_offset_ns
        steps = window.read(self._tracer.taken(), until_ns, self._names, self._rules, offset_ns)
        self._remark(window)
        return steps

    def _remark(self, window: Window) -> None:
        """Report each kind of contradiction once, and kernels that may be communication."""
        for why, count in window.contradictions.items():
            if why not in self._remarked:
                self._remarked.add(why)
                self.remarks += coherence.describe(Counter({why: count}))
        if new := self._names.look_alikes - self._remarked:
            self._remarked |= new
            self.remarks.append(describe_look_alikes(self._names.look_alikes))

    def _take_in(self, steps: list[TracedStep]) -> None:
        self._note_progress()
        self._overflows = 0
        self.schedule.prior = LAUNCH_BOUND_COST if steps[-1].waits_for_launches else COST
        named = self._naming.name(steps, self._host_step_ns, watched=self.schedule.watched)
        self._measured.update((step.step, step) for step in named)
        self.reason = self._naming.reason
        self._lead_ns = steps[-1].launch_lead_ns or 0

    def settings_changed(self, step: int) -> None:
        self._naming.settings_changed(step)

    def last_calls(self) -> dict[str, tuple[IssuedCall, ...]]:
        return self._naming.last_calls()

    def _give_up(self, why: str) -> None:
        self.gave_up = why
        self._release()

    def _release(self) -> None:
        """Drop the present window, whose steps the host then times, and release CUPTI."""
        if self._window is not None:
            self._window.end()
            self._window = None
        self._state, self._check = _State.IDLE, None
        self._bounds.clear()
        self.schedule.cost.skip()
        self._tracer.hand_over()

    def _finished_steps(self) -> list[StepSpans]:
        """Return the ended steps, up to the first measured one that has not been read yet."""
        finished: list[StepSpans] = []
        window = self._window
        while len(self._boundaries) > 1:
            (step, begin_ns, worked), (_, end_ns, worked_after) = self._boundaries[0], self._boundaries[1]
            if window is not None and not window.broken and step in window.pending:
                break
            self._boundaries.popleft()
            measured = self._measured.pop(step, None)
            if worked is not None and worked_after is not None:  # a paused step says nothing of the cost
                self._unnoted.append((step, end_ns - begin_ns, worked or worked_after))
            # A step between windows has only a length, by the host's clock.
            lead_ns = self._lead_ns
            finished.append(measured or StepSpans(step, begin_ns + lead_ns, end_ns + lead_ns, (), None))
        if window is None:
            self._measured.clear()  # the rest are steps that were not taken in time
        return finished

    def _note_steps(self) -> None:
        """Pass finished steps to the schedule, each with the mean length of the steps in its stretch.

        Lengths are on the GPU's clock: a host ahead of the GPU sometimes waits for space in the launch
        queue, so its own step lengths vary.
        """
        while self._unnoted:
            step, host_ns, touched = self._unnoted[0]
            while len(self._bounds) > 1 and self._bounds[1][0] <= step:
                self._bounds.popleft()
            length_ns = host_ns
            if self._bounds and self._bounds[0][0] <= step:
                if len(self._bounds) == 1:
                    return
                (first, begin), (after, end) = self._bounds[0], self._bounds[1]
                with self._captures.held_off() as free:
                    if not (free and end.query()):
                        return
                length_ns = round(begin.elapsed_time(end) * NS_PER_MS / (after - first))
            self._unnoted.popleft()
            self.schedule.note(step, length_ns, touched=touched)
