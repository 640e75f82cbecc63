"""The common part of the sources `events` and `host`: hooks record each collective and each wait.

Neither CUDA events nor the host's clock see idle time between two kernels. So compute is the step minus its
known waits, an upper bound, and the dashboard says so.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from overlaptop.agent.sources.base import (
    MAX_WAITING_STEPS,
    CollectiveCall,
    Edge,
    StepSpans,
    Wait,
    phases_of,
)
from overlaptop.agent.sources.schedule import Estimate, Schedule
from overlaptop.timeline import spans
from overlaptop.timeline.collectives import sum_links_where_known
from overlaptop.wire.messages import LEFT_OUT, CollectiveSpan

COST = Estimate(0.002, 0.01)
"""Cost of recording a step, for any job: about 20 us of a thread for each collective."""
TIMEOUT_STEPS = 16
"""A step whose collectives have not ended when this many later steps have is dropped and counted."""
MAX_MARKS = 4096  # Most collectives, and most waits, of a step; a step with more has no lanes

Timestamp: TypeAlias = Any  # ns on the host's clock, or a CUDA event until the step is read


@dataclass(slots=True)
class RecordedCollective:
    """A collective. `end` is set later, perhaps on another thread."""

    call: CollectiveCall
    begin: Timestamp
    end: Timestamp = None  # None until it is known
    stream_key: object = None
    """Calls with one key run one after another in the order of issue; None: no known order."""
    on_compute: bool = False
    """True if it ran on the compute stream itself, which did nothing else meanwhile."""
    lost: bool = False  # True if its end could not be seen; `end` is then meaningless


@dataclass(slots=True)
class RecordedStep:
    """One step. Its lists only grow, so hooks on several threads need no lock."""

    step: int
    detailed: bool  # True if its collectives and waits are recorded
    begin: Timestamp
    begin_host_ns: int = 0  # Unix time in ns at which the host set `begin`
    end: Timestamp = None  # None until it is known
    edges: list[tuple[Edge, Timestamp]] = field(default_factory=list)
    collectives: list[RecordedCollective] = field(default_factory=list)
    waits: list[tuple[Timestamp, Timestamp, Wait]] = field(default_factory=list)
    collective_count: int | None = 0  # None if collectives are not counted
    invalid: bool = False
    """True if a part could not be measured. The lane totals would be wrong, so they are left out."""

    @property
    def complete(self) -> bool:
        return self.end is not None and all(each.end is not None for each in self.collectives)

    def converted(self, to: Callable[[Timestamp], int]) -> "RecordedStep":
        """Return the complete step with its timestamps in ns."""
        return replace(
            self,
            begin=to(self.begin),
            end=to(self.end),
            edges=[(edge, to(at)) for edge, at in self.edges],
            collectives=[
                replace(each, begin=to(each.begin), end=to(each.end))
                for each in self.collectives
                if each.end is not None
            ],
            waits=[(to(begin), to(end), wait) for begin, end, wait in self.waits],
        )


class Assembler:
    """Turns recorded steps, in order, into StepSpans; carries running collectives into the next step."""

    def __init__(self) -> None:
        self._carried: list[CollectiveSpan] = []
        self._last_end_ns: dict[object, int] = {}

    def assemble(self, recorded: RecordedStep) -> StepSpans:
        """Return the spans of one complete step with timestamps in ns, clipped to it."""
        begin_ns, end_ns = recorded.begin, recorded.end
        phases = phases_of(begin_ns, end_ns, recorded.edges)
        if not recorded.detailed or recorded.invalid or any(each.lost for each in recorded.collectives):
            # Collectives of an earlier step cannot be followed through an unmeasured one.
            self._carried.clear()
            self._last_end_ns.clear()
            return StepSpans(recorded.step, begin_ns, end_ns, phases, recorded.collective_count)
        # Another thread's hook may still append a collective that has not ended.
        ended = [each for each in recorded.collectives if each.end is not None]
        timed = [self._timed(each) for each in ended]
        running = [*self._carried, *timed]
        self._carried = [each for each in running if each.end_ns > end_ns]

        def lane(pairs: Iterable[tuple[int, int]]) -> spans.Spans:
            some = list(pairs)
            return spans.clip(spans.from_pairs(some), begin_ns, end_ns) if some else spans.empty()

        comm = lane((each.start_ns, each.end_ns) for each in running)
        pure, mixed = (
            lane((begin, end) for begin, end, wait in recorded.waits if wait is kind)
            for kind in (Wait.PURE, Wait.MIXED)
        )
        on_compute = lane(
            (times.start_ns, times.end_ns)
            for times, each in zip(timed, ended, strict=True)
            if each.on_compute
        )
        stall = spans.union(spans.intersection(spans.union(pure, mixed), comm), on_compute)
        return StepSpans(
            recorded.step,
            begin_ns,
            end_ns,
            phases,
            recorded.collective_count,
            detailed=True,
            compute=spans.difference(lane([(begin_ns, end_ns)]), spans.union(pure, stall)),
            comm=comm,
            stall=stall,
            collectives=tuple(timed),
            link=sum_links_where_known(each.call.link for each in ended),
        )

    def _timed(self, recorded: RecordedCollective) -> CollectiveSpan:
        """Return a collective's own time: a queued one starts when the one before it ends."""
        start_ns, end_ns, key = recorded.begin, recorded.end, recorded.stream_key
        if key is not None:
            start_ns = max(start_ns, self._last_end_ns.get(key, start_ns))
            self._last_end_ns[key] = end_ns
        return recorded.call.span(start_ns, max(start_ns, end_ns))


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
