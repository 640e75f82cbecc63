"""The common part of the sources `events` and `host`: hooks record each collective and each wait."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from overlaptop.agent.sources.assemble import (
    MAX_MARKS,
    Assembler,
    RecordedCollective,
    RecordedStep,
    Timestamp,
)
from overlaptop.agent.sources.base import MAX_WAITING_STEPS, CollectiveCall, StepSpans, Wait
from overlaptop.agent.sources.own_cost import Estimate
from overlaptop.agent.sources.schedule import Schedule
from overlaptop.wire.messages import LEFT_OUT

COST = Estimate(0.002, 0.01)
"""Cost of recording a step, for any job: about 20 us of a thread for each collective."""
TIMEOUT_STEPS = 16
"""A step whose collectives have not ended when this many later steps have is dropped and counted."""


class HookedSource(ABC):
    """A Source that hooks call at each collective, and at each wait for one, as it is issued."""

    name: str
    compute_exact = False
    gave_up = ""

    def __init__(
        self, phases_only: bool, every: int | None, reason: str, budget: float | None = None
    ) -> None:
        self.reason = reason
        self.remarks: deque[str] = deque()
        self.schedule = Schedule(every, COST, budget=budget)
        self.lost = 0
        self._phases_only = phases_only
        self._ended: deque[tuple[int, int, bool]] = deque(maxlen=MAX_WAITING_STEPS)
        """Step, ns the host took for it, and whether it was recorded in detail."""
        self._recording: RecordedStep | None = None
        self._finished: deque[RecordedStep] = deque()
        self._assembler = Assembler()

    @property
    def detail_every(self) -> int:
        return 0 if self._phases_only else self.schedule.every

    def settings_changed(self, step: int) -> None:  # noqa: B027 - no source needs it
        """See `Source`. Nothing to do: steps are described as they run."""

    def issue(self, describe: Callable[[], CollectiveCall | None]) -> RecordedCollective | None:
        """A collective is about to be issued. Returns a token for `issued`; None: nothing to do.

        Describing costs more than counting, so it is done on demand. It returns None if there is no
        collective, as when a compiler traces one.
        """
        recording = self._recording
        if recording is None or recording.collective_count is None:
            return None
        if self._is_captured(recording):
            return None
        if not recording.detailed:
            recording.collective_count += 1
            return None
        if len(recording.collectives) >= MAX_MARKS:  # such a step is not shown, so skip the description
            recording.collective_count += 1
            self._overflow(recording, "collectives")
            return None
        call = describe()
        if call is None:
            return None
        recording.collective_count += 1
        collective = self._begin(call, recording)
        if collective is not None:
            recording.collectives.append(collective)
        return collective

    def _is_captured(self, recording: RecordedStep) -> bool:  # noqa: ARG002
        """Whether it is captured into a CUDA graph, which runs it without hooks."""
        return False

    @abstractmethod
    def _begin(self, call: CollectiveCall, recording: RecordedStep) -> RecordedCollective | None:
        """Record the start of a collective; None if this source cannot follow it."""

    @abstractmethod
    def issued(self, token: Any, work: Any) -> None:
        """It has been issued. `work` is c10d's Work, or None if the call ran on the current stream."""

    def failed(self, token: RecordedCollective) -> None:
        token.lost, token.end = True, token.begin
        self.lost += 1

    def _leave_out(self, token: RecordedCollective, calls: str) -> None:
        """Leave it out: such calls' ends are hidden. It does not count as lost: the screen says why."""
        token.lost, token.end = True, token.begin
        self.reason = f"steps with {calls} {LEFT_OUT}: its end is hidden"

    @abstractmethod
    def wait_begin(self, stream: Any = None) -> Any:
        """A wait for communication begins now, on `stream` (None: the current one).

        Returns a token for `wait_end`; None: not measured.
        """

    @abstractmethod
    def wait_end(self, token: Any, wait: Wait, work: Any = None) -> None:
        """The wait ends now. ``work``: what Python code waited for, a Work or a future."""

    def take(self) -> list[StepSpans]:
        self._note_steps()
        taken = []
        while self._finished:
            if self._finished[0].complete:
                taken.append(self._assembler.assemble(self._finished.popleft()))
            elif len(self._finished) > TIMEOUT_STEPS:
                self._finished.popleft()
                self.lost += 1
            else:
                break
        return taken

    def _begin_step(self, step: int, mark: Timestamp, host_ns: int) -> RecordedStep | None:
        """Record `step` from `mark` on; returns the step that ends there."""
        ended = self._recording
        self._recording = RecordedStep(
            step,
            self.detail_every > 0 and self.schedule.measures(step),
            mark,
            host_ns,
            collective_count=None if self._phases_only else 0,
        )
        if ended is not None:
            ended.end = mark
            self._ended.append((ended.step, host_ns - ended.begin_host_ns, ended.detailed))
        return ended

    def _finish(self, step: RecordedStep) -> None:
        if len(self._finished) < MAX_WAITING_STEPS:
            self._finished.append(step)
        else:
            self.lost += 1

    def _note_steps(self) -> None:
        """Pass ended steps to the schedule. On the agent's thread."""
        while self._ended:
            step, length_ns, detailed = self._ended.popleft()
            self.schedule.note(step, length_ns, touched=detailed)

    def _overflow(self, recording: RecordedStep, calls: str) -> None:
        """Leave out a step of more than MAX_MARKS calls. It does not count as lost: the screen says why."""
        if recording.invalid:
            return  # keep the first reason
        recording.invalid = True
        self.reason = f"steps with more than {MAX_MARKS:,} {calls} {LEFT_OUT}: {self.name} follows no more"
