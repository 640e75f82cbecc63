"""One rank's part of JobState: its steps, timelines, samples and facts. Pure."""

from collections import deque
from itertools import islice

import msgspec
from msgspec.structs import replace

from overlaptop.fleet.commands import LiveOverlap
from overlaptop.fleet.snapshot import KeptTimeline, RankView
from overlaptop.fleet.traffic import LONGEST_WINDOW_S, StepWindow
from overlaptop.fleet.trouble import is_stale
from overlaptop.fleet.window import evidence_steps, history_steps, overlap_of
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from overlaptop.wire.knobs import GradientFacts, KnobFacts
from overlaptop.wire.messages import (
    EnvironmentFacts,
    Facts,
    OwnCost,
    RankStalled,
    StackSamples,
    StepDetail,
    StepTotals,
)

RECENT_DETAILS = 8
MAX_RANK_TIMELINE_BYTES = 4 << 20  # Several hundred steps
SHIFTED_NS = 1_000_000_000
"""Tolerance for a message's time when the hub's history is sent again: the clock of another host is known
better by then. A process that takes a rank's place needs longer to start."""
MAX_STACKS = 30  # StackSamples kept of a rank, one a second
MAX_SAMPLES = 128  # Samples kept of a rank's GPU: LONGEST_WINDOW_S at two a second
LIVE_STEPS = 32  # Measured steps before a command acts, as the baseline for its effect
_FIELDS = {
    MachineFacts: "machine",
    NumaFacts: "numa",
    GradientFacts: "gradients",
    OwnCost: "own_cost",
    EnvironmentFacts: "environment",
}
"""Fields of RankView that hold a message as it came."""
_pack = msgspec.msgpack.Encoder().encode


class RankState:
    """One rank's state between snapshots."""

    def __init__(self, rank: int, node: str) -> None:
        self.known = RankView(rank, node=node)
        """Its view without the fields that follow from its steps and samples."""
        self.arrived_ns = 0
        self.samples: deque[DeviceSample] = deque(maxlen=MAX_SAMPLES)
        self.traffic_due = False
        self._sample_history: tuple[DeviceSample, ...] | None = ()
        self._begin_steps()

    def _begin_steps(self) -> None:
        self.steps: deque[StepTotals] = deque()
        self.older: deque[StepTotals] = deque()
        """Measured steps that no longer fit into `steps`."""
        self.measured: StepTotals | None = None
        self.details: deque[StepDetail] = deque(maxlen=RECENT_DETAILS)
        self.timelines: deque[KeptTimeline] = deque()
        self.timeline_bytes = 0
        self.stacks: deque[StackSamples] = deque(maxlen=MAX_STACKS)
        self.longest_step_ns = 0
        self.disturbed_step = -1
        self.window = StepWindow()
        self._step_history: tuple[StepTotals, ...] | None = ()
        self._older_history: tuple[StepTotals, ...] = ()

    def learn(self, **facts: object) -> None:
        self.known = replace(self.known, **facts)

    def learn_facts(self, facts: Facts) -> None:
        match facts:
            case KnobFacts():
                self.learn(knobs=facts.knobs)
            case RankStalled():
                self.learn(stalled=facts if facts.hung or facts.stack else None)
            case DeviceFacts():
                self.learn(device=facts)
                self.traffic_due = True
            case _:
                self.learn(**{_FIELDS[type(facts)]: facts})

    @property
    def nic(self) -> tuple[str, str] | None:
        """Host and name of its adapter; None if not known, or if the job has no other nodes."""
        info, name = self.known.info, self.known.numa.nic if self.known.numa is not None else ""
        if info is None or not name or (info.local_world_size or info.world_size) == info.world_size:
            return None
        return info.host, name

    def add(self, step: StepTotals, ranks: int) -> bool:
        """Add a step unless it is known, as from a hub's history. ``ranks`` share the steps kept."""
        if self.steps and step.step <= (last := self.steps[-1]).step:
            if step.start_ns < last.start_ns + SHIFTED_NS:
                return False
            self._begin_steps()  # the rank restarted and counts from 0 again
        if self.steps:
            self.longest_step_ns = max(self.longest_step_ns, step.step_ns)
        if step.disturbed:
            self.disturbed_step = step.step
        self.steps.append(step)
        while len(self.steps) > history_steps(ranks):
            if (oldest := self.steps.popleft()).measured:
                self.older.append(oldest)
        while len(self.older) > evidence_steps(ranks):
            self.older.popleft()
        self.window.add(step)
        if not self.samples:
            self.traffic_due = True  # otherwise the next sample computes it, soon enough
        if step.measured:
            self.measured = step
        self._step_history = None
        return True

    def add_detail(self, detail: StepDetail) -> None:
        self.details.append(detail)
        # Packed: as objects they would slow the garbage collector.
        self.timelines.append(KeptTimeline(detail.step, packed := _pack(detail)))
        self.timeline_bytes += len(packed)
        while self.timeline_bytes > MAX_RANK_TIMELINE_BYTES:
            self.drop_timeline()

    def drop_timeline(self) -> None:
        self.timeline_bytes -= len(self.timelines.popleft().packed)

    def live_overlap(self, before: int) -> LiveOverlap | None:
        """Return the overlap of the last measured steps before this one. None without communication."""
        measured = (step for step in reversed(self.steps) if step.step < before and step.comm_ns)
        seen = list(islice(measured, LIVE_STEPS))
        found = overlap_of(seen)
        return None if found is None else LiveOverlap(found, len(seen))

    def add_sample(self, sample: DeviceSample, replaying: bool) -> bool:
        samples = self.samples
        if samples and sample.at_ns <= samples[-1].at_ns:
            if replaying:
                return False
            samples.clear()  # the clock was set back
        samples.append(sample)
        while samples[0].at_ns < sample.at_ns - LONGEST_WINDOW_S * 1e9:
            samples.popleft()
        self._sample_history = None
        self.traffic_due = True
        return True

    def add_stacks(self, taken: StackSamples, replaying: bool) -> None:
        if self.stacks and taken.to_ns <= self.stacks[-1].to_ns:
            if replaying:
                return
            self.stacks.clear()  # the clock was set back
        self.stacks.append(taken)

    def view(self, now_ns: int, *, is_silent: bool) -> RankView:
        if self._step_history is None:
            self._step_history, self._older_history = tuple(self.steps), tuple(self.older)
        if self._sample_history is None:
            self._sample_history = tuple(self.samples)
        last = self.steps[-1] if self.steps else None
        age_s = None if last is None else max(0, now_ns - self.arrived_ns) / 1e9
        stale = not self.known.ended and age_s is not None and is_stale(age_s, self.steps)
        return replace(
            self.known,
            last=last,
            measured=self.measured,
            history=self._step_history,
            older=self._older_history,
            detail=self.details[-1] if self.details else None,
            details=tuple(self.details),
            timelines=tuple(self.timelines),
            longest_step_ns=self.longest_step_ns,
            disturbed_step=self.disturbed_step,
            age_s=age_s,
            stale=stale,
            dropped=last.dropped if last else 0,
            samples=self._sample_history,
            stacks=tuple(self.stacks),
            silent=stale and is_silent,
        )
