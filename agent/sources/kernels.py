"""The kernels source: every kernel and copy on the GPU, by CUPTI's own records (NVIDIA).

Steps are traced in windows (window.py), as the schedule has it: tracing is switched on, whole steps pass
between marks on the compute stream, tracing is switched off. Meanwhile CUPTI gives back its buffers as
they become complete, and a step is read once every buffer is back that was in use before the GPU came to
its end. So nothing is ever read that is not complete, and between windows the job runs as without an agent.
The steps there are timed by the host.

The job's threads set the marks, and switch tracing on and off, at the boundaries where it begins and ends
and once for a self-check; while tracing is on CUPTI has one of them ask for an empty buffer now and then.
All else happens on the agent's thread, in `take`.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto
from time import monotonic

import torch

from overlaptop.agent.clock import now_ns
from overlaptop.agent.isolation.job_exceptions import raised_by_job, run_to_completion
from overlaptop.agent.isolation.threads import signals_blocked
from overlaptop.agent.sources.base import MAX_WAITING_STEPS, CollectiveCall, Edge, StepSpans
from overlaptop.agent.sources.collective_join import join
from overlaptop.agent.sources.cupti.holders import tool_in
from overlaptop.agent.sources.cupti.layouts import UnknownRecordError
from overlaptop.agent.sources.cupti.library import CuptiError
from overlaptop.agent.sources.cupti.tracer import Tracer
from overlaptop.agent.sources.flight_recorder import LaunchLog
from overlaptop.agent.sources.graph_captures import GraphCaptureWatch
from overlaptop.agent.sources.kernel_names import KernelNames
from overlaptop.agent.sources.kernel_steps import StreamMark, TracedStep, fault_in
from overlaptop.agent.sources.marker import Marker
from overlaptop.agent.sources.own_cost import Estimate
from overlaptop.agent.sources.repeated_step import REPEATS, RepeatedStep
from overlaptop.agent.sources.schedule import Schedule
from overlaptop.agent.sources.window import LEAD_STEPS, Window
from overlaptop.timeline import coherence
from overlaptop.timeline.lanes import LaneRules, describe_look_alikes
from overlaptop.wire.messages import IssuedCall

DRAIN_TIMEOUT_S, DRAIN_TIMEOUT_STEPS = 15.0, 50
"""CUPTI may keep for so long, and so many more steps, what the GPU must by then have finished."""
STANDSTILL_S, STANDSTILL_TIMES = 5.0, 4
"""A step that lasts so long, and so many times as long as the one before, ends the window, unless the GPU
is still at those before it: the job has turned to something else."""
MAX_OVERFLOWS = 3
"""Windows in a row that held more than can be kept."""
COST, LAUNCH_BOUND_COST = Estimate(0.005, 0.01), Estimate(0.1, 0.08)
"""What tracing a step costs as far as it is known of any job, and of launch-bound ones: there each launch
is slower, and nothing hides that (benchmarks/README.md)."""
MOST_EARLY_READS, EARLY_PERIOD_S = 64, 30.0
"""Launches are looked up at once where steps repeat none that is known: in the first, second, fourth ...
such reading, up to so many; all over again where a setting has changed, or so long after the last."""
CHECKS = 3
"""Tries of the self-check."""
MAX_BOUNDS = 256
BOUND_PERIOD_NS = 250_000_000
"""The GPU's time is noted so often at least, so that steps of another length are soon known as such."""
NS_PER_MS = 1_000_000

PAUSED = "paused: torch.profiler is running"
SELDOM_NAMED = "collectives have names in few steps: set TORCH_FR_BUFFER_SIZE={}"
OVERFLOWS = "steps hold more kernels than can be kept"
TAKEN_OVER = "another user of CUPTI in this process takes its records"


class _State(Enum):
    IDLE = auto()
    TRACING = auto()
    DRAINING = auto()
    """CUPTI still has buffers: of a window, or of the self-check."""


class KernelsSource:
    """Spans by CUPTI's records. See sources.base.Source for the protocol."""

    name = "kernels"
    compute_exact = True

    def __init__(
        self,
        every: int | None,
        device_index: int | None,
        rules: LaneRules,
        budget: float | None = None,
    ) -> None:
        """Measure on `device_index`; None: on the device that is current when it starts."""
        self.reason = ""
        self.gave_up = ""
        self.remarks: deque[str] = deque()
        self._remarked: set[str] = set()
        self._rules = rules
        self._names = KernelNames(rules)
        self.schedule = Schedule(every, COST, LEAD_STEPS, budget)
        self._device = device_index
        self._lock = threading.Lock()
        """Held while the state changes. Below it lie the locks of GraphCaptureWatch and Tracer."""
        self._state = _State.IDLE
        self._paused = False
        self._step = 0
        self._host_step_ns = 0
        """How long the host took for the last step."""
        self._boundaries: deque[tuple[int, int, bool | None]] = deque()
        """Steps that have begun and not been reported, with the host's time of it, and `_worked` then, or
        None where the source was paused."""
        self._worked = False
        """Whether it was tracing or reading as the last step began."""
        self._bounds: deque[tuple[int, torch.cuda.Event]] = deque(maxlen=MAX_BOUNDS)
        """Steps at which the source begins or ends its work, or BOUND_PERIOD_NS later; when the GPU came to
        them."""
        self._bound_ns = 0
        """When the last of them began, by the host's clock."""
        self._unnoted: deque[tuple[int, int, bool]] = deque(maxlen=MAX_WAITING_STEPS)
        """Finished steps that the schedule does not know yet: number, ns by the host clock, and whether the
        source worked in it."""
        self._measured: dict[int, StepSpans] = {}
        self._window: Window | None = None
        self._progress_s, self._progress_step = 0.0, 0
        """When a step was read, or the window began or ended, and the job's step then."""
        self._lost_before = 0
        self._check: tuple[StreamMark, StreamMark] | None = None
        """The marks around the self-check's kernel, while its records are waited for."""
        self._checks = 0
        self._checked = False
        self._captures = GraphCaptureWatch()
        self._lead_ns = 0
        self._overflowed = 0
        """Steps that nobody took in time."""
        self._overflows = 0
        """Windows in a row that held too much."""

    @property
    def detail_every(self) -> int:
        """The kernels are seen of one in so many steps."""
        return self.schedule.every

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
        self._repeated = RepeatedStep()
        self._changed_step = 0
        """From this step on a setting may be another one. Set on the job's thread."""
        self._unknown_reads, self._early_s = 0, 0.0
        """Readings of steps that repeat none; when launches were last looked up early for such steps."""
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
        """A phase begins or ends here."""
        window = self._window
        if window is not None and not torch.cuda.is_current_stream_capturing():
            window.edge(edge)

    def take(self) -> list[StepSpans]:
        """Drive the windows on, and give the steps finished since the last call, in order."""
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
        """Take in what there is, and see whether the window, or the draining, is over."""
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
            elif self._stands_still():
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

    def _stands_still(self) -> bool:
        standing_s = (now_ns() - self._boundaries[-1][1]) / 1e9 if self._boundaries else 0.0
        if self._window is not None and self._window.pending:  # it may be the host alone that waits
            standing_s = min(standing_s, monotonic() - self._progress_s)
        return standing_s > max(STANDSTILL_S, STANDSTILL_TIMES * self._host_step_ns / 1e9)

    def _check_progress(self) -> None:
        """Give up when records stay away long after the GPU must have finished with them."""
        window = self._window
        if self._state is _State.TRACING and not (window and window.pending):
            self._note_progress()
        overdue = monotonic() - self._progress_s > DRAIN_TIMEOUT_S
        if overdue and self._step - self._progress_step > DRAIN_TIMEOUT_STEPS:
            self._give_up(TAKEN_OVER)

    def _note_progress(self) -> None:
        self._progress_s, self._progress_step = monotonic(), self._step

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
            self._state = _State.DRAINING
            self._note_progress()

    def _end_check(self) -> None:
        """Start measuring, or check once more, or give up."""
        assert self._check is not None
        check, self._check = self._check, None
        self._state = _State.IDLE
        fault = fault_in(*check, self._tracer.taken(), self._tracer.clock_offset_ns)
        self._checked = not fault
        if fault and self._checks == CHECKS:
            self._give_up(f"CUPTI's records are not what they should be: {fault}")

    def _if_free(self, switch: Callable[[], None]) -> None:
        """Switch tracing on or off on a thread of the job's, which does not wait for the agent's: where
        that one is at work, tracing goes on a step later, and off when it is done.
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
        """The steps whose records are all there."""
        window = self._window
        if window is None:
            return []
        if self._tracer.lost > self._lost_before:
            window.end()  # something is missing, so each total might be wrong
        if window.broken:
            return []
        offset_ns = self._tracer.clock_offset_ns
        steps = window.read(self._tracer.taken(), until_ns, self._names, self._rules, offset_ns)
        self._remark(window)
        return steps

    def _remark(self, window: Window) -> None:
        """Say each kind of contradiction once, and which kernels may be communication."""
        for why, count in window.contradictions.items():
            if why not in self._remarked:
                self._remarked.add(why)
                self.remarks += coherence.describe(Counter({why: count}))
        if new := self._names.look_alikes - self._remarked:
            self._remarked |= new
            self.remarks.append(describe_look_alikes(self._names.look_alikes))

    def _take_in(self, steps: list[TracedStep]) -> None:
        """Name the collectives of these steps, which have been read, and keep them."""
        self._note_progress()
        self._overflows = 0
        if self._changed_step != self._repeated.from_step:
            self._repeated.forget(self._changed_step)
            self._unknown_reads = 0
        self.schedule.prior = LAUNCH_BOUND_COST if steps[-1].waits_for_launches else COST
        launches = self._launches(steps)
        for step in steps:
            self._measured[step.step] = self._named(step, launches)
        if launches and self._log.was_short and not any(map(self._repeated.knows, steps)):
            most = max(step.collective_count or 0 for step in steps)
            self.reason = SELDOM_NAMED.format(2 * (REPEATS + 2) * most)
        self._lead_ns = steps[-1].launch_lead_ns or 0

    def _named(self, step: TracedStep, looked_up: list[CollectiveCall] | None) -> TracedStep:
        """The step with its collectives, as far as they are known."""
        if looked_up is not None:
            self._repeated.learn(step, looked_up)
            return join(step, looked_up)
        if self._log.reason:  # never known: collectives go by their kernels
            return replace(join(step, []), comm_kernels_ns=None, matched_ns=None)
        repeated = self._repeated.launches(step)
        return step if repeated is None else join(step, repeated)

    def settings_changed(self, step: int) -> None:
        """From this step on, which begins, steps may issue other collectives, with the same kernels."""
        self._changed_step = step

    def _launches(self, steps: list[TracedStep]) -> list[CollectiveCall] | None:
        """What the host issued in these steps; None when it is not due to be read, or not known."""
        if not any(interval.kernels for step in steps for interval in step.intervals):
            return []
        numbers = range(steps[0].step, steps[-1].step + 1)
        early = self._looks_up_early(steps)
        # What repeats is looked up as rarely as where nobody watches: to see that it still does.
        watched = self.schedule.watched and not all(map(self._repeated.knows, steps))
        if not (self._log.due(numbers, self._host_step_ns, watched=watched) or early):
            return None
        with self._captures.held_off() as free:
            if not free:
                return None
            # By the host's clock, by which steps of one length may differ.
            longest_ns = max(s.intervals[-1].to_unix_ns - s.intervals[0].from_unix_ns for s in steps)
            from_ns = steps[0].intervals[0].from_unix_ns
            launches = self._log.read(steps[0].step, from_ns, (REPEATS + 2) * longest_ns)
        self.reason = self._log.reason
        return launches

    def _looks_up_early(self, steps: list[TracedStep]) -> bool:
        """Whether launches are looked up before they are due, as these steps repeat none that is known."""
        if self._log.reason or any(map(self._repeated.knows, steps)):
            return False
        if monotonic() - self._early_s > EARLY_PERIOD_S:
            self._unknown_reads = 0
        self._unknown_reads += 1
        early = self._unknown_reads <= MOST_EARLY_READS and self._unknown_reads.bit_count() == 1
        if early:
            self._early_s = monotonic()
        return early

    def last_calls(self) -> dict[str, tuple[IssuedCall, ...]]:
        """The last collectives of each group, by torch's flight recorder; empty where it is not known."""
        with self._captures.held_off() as free:
            return self._log.last_calls() if free else {}

    def _give_up(self, why: str) -> None:
        """Have the agent take another source."""
        self.gave_up = why
        self._release()

    def _release(self) -> None:
        """Drop the window under way, whose steps are then timed by the host, and release CUPTI."""
        if self._window is not None:
            self._window.end()
            self._window = None
        self._state, self._check = _State.IDLE, None
        self._bounds.clear()
        self.schedule.cost.skip()
        self._tracer.hand_over()

    def _finished_steps(self) -> list[StepSpans]:
        """The steps that have ended, up to the first that is being measured and has not been read yet."""
        finished: list[StepSpans] = []
        window = self._window
        while len(self._boundaries) > 1:
            (step, begin_ns, worked), (_, end_ns, worked_after) = self._boundaries[0], self._boundaries[1]
            if window is not None and not window.broken and step in window.pending:
                break
            self._boundaries.popleft()
            measured = self._measured.pop(step, None)
            if worked is not None and worked_after is not None:  # else it says nothing of the cost
                self._unnoted.append((step, end_ns - begin_ns, worked or worked_after))
            # Of a step between windows only the length is known, by the host's clock.
            lead_ns = self._lead_ns
            finished.append(measured or StepSpans(step, begin_ns + lead_ns, end_ns + lead_ns, (), None))
        if window is None:
            self._measured.clear()  # what is left is of steps that were not taken in time
        return finished

    def _note_steps(self) -> None:
        """Tell the schedule of finished steps: of each the mean length of those that were treated alike.

        By the GPU's clock: a host that is ahead of it waits now and then until there is room for launches,
        and its own steps are of any length.
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
