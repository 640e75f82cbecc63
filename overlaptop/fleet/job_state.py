"""JobState: builds the state of a running job from its messages. Pure: no I/O, no threads."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from overlaptop.fleet.commands import CommandBook
from overlaptop.fleet.knobs import job_knobs
from overlaptop.fleet.snapshot import HubState, RankView, Snapshot
from overlaptop.fleet.timelines import Timelines
from overlaptop.fleet.totals import total
from overlaptop.fleet.traffic import LONGEST_WINDOW_S, StepWindow, nic_traffic_of, traffic_of
from overlaptop.fleet.trouble import is_stale
from overlaptop.fleet.wait_breakdown import WaitBreakdown
from overlaptop.fleet.window import MOST_HISTORY_STEPS, evidence_steps, history_steps
from overlaptop.wire.bounds import MAX_RANKS
from overlaptop.wire.commands import Command, CommandOutcome
from overlaptop.wire.devices import DeviceFacts, DeviceSample, MachineFacts, NumaFacts
from overlaptop.wire.knobs import GradientFacts, KnobFacts
from overlaptop.wire.messages import (
    EnvironmentFacts,
    Facts,
    HubStatus,
    Notice,
    OwnCost,
    RankEnd,
    RankInfo,
    RankStalled,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.schema import Message

RECENT_DETAILS = 8
MAX_TIMELINE_BYTES = 64 << 20
"""Of all ranks together: as much as the compared ranks may have."""
MAX_NOTICES = 200
MAX_FRESH = MOST_HISTORY_STEPS
"""Steps, and samples of GPUs, held until the next snapshot. Any beyond are dropped and counted."""
MAX_NODE_RANKS = 256
"""Ranks of one node of several, which may run other software. Ended ranks are dropped first."""
SHIFTED_NS = 1_000_000_000
"""Tolerance for a message's time when the hub's history is sent again: the clock of another host is known
better by then. A process that takes a rank's place needs longer to start."""
MAX_STACKS = 30
"""StackSamples kept of a rank, one a second."""
MAX_SAMPLES = 128
"""Samples kept of a rank's GPU: LONGEST_WINDOW_S at two a second."""


class _Rank:
    """One rank's state between snapshots, and where it runs."""

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
        self.timelines = Timelines()
        self.stacks: deque[StackSamples] = deque(maxlen=MAX_STACKS)
        self.longest_step_ns = 0
        self.disturbed_step = -1
        self.window = StepWindow()
        self._step_history: tuple[StepTotals, ...] | None = ()
        self._older_history: tuple[StepTotals, ...] = ()

    def learn(self, **facts: object) -> None:
        """Set these fields of its view."""
        self.known = replace(self.known, **facts)

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

    def add_sample(self, sample: DeviceSample, replaying: bool) -> bool:
        """Add a sample of the rank's GPU unless it is already known."""
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
        """Add one second of stack samples unless they are already known."""
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
            timelines=self.timelines.kept,
            longest_step_ns=self.longest_step_ns,
            disturbed_step=self.disturbed_step,
            age_s=age_s,
            stale=stale,
            dropped=last.dropped if last else 0,
            samples=self._sample_history,
            stacks=tuple(self.stacks),
            silent=stale and is_silent,
        )


class JobState:
    """The state of one job. ``apply`` each message in order, then take a ``snapshot``.

    ``clock_ns`` returns Unix time. A Welcome from another job empties the JobState. A Welcome from the same
    job, sent by a hub that replaced a dead one, keeps the state.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns, node: str = "") -> None:
        """``node``: the one of several nodes that all messages come from. The Snapshots then hold only this
        node's ranks, and neither totals nor knobs, which need all nodes.
        """
        self._clock_ns = clock_ns
        self._node = node
        self._job: Welcome | None = None
        self._world_size = 0
        self._ranks: dict[int, _Rank] = {}
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._commands = CommandBook()
        self._breakdown = WaitBreakdown()
        self._fresh: deque[StepTotals] = deque()
        self._fresh_samples: deque[DeviceSample] = deque()
        self._by_gpu: dict[str, list[_Rank]] | None = None
        """Running ranks by the UUID of their GPU. None: look them up again."""
        self._unread = 0
        self._hub_dropped = self._earlier_hubs_dropped = 0
        self._hub_state = HubState.WAITING
        self._hub_since_ns = clock_ns()
        self._hub_note = ""
        self._frames_dropped = 0
        self._replaying = False
        self._silent: frozenset[int] = frozenset()
        self.job_ended = False
        """The hub says that every rank has gone."""

    @property
    def every_rank_ended(self) -> bool:
        seen = [rank for rank in self._ranks.values() if rank.known.info is not None or rank.steps]
        return bool(seen) and all(rank.known.ended for rank in seen)

    @property
    def any_rank_failed(self) -> bool:
        ends = (rank.known.end for rank in self._ranks.values())
        return any(end is not None and end.failed for end in ends)

    def set_hub_state(self, state: HubState, note: str = "", dropped: int = 0) -> None:
        """Set the connection's state, its reason, and the frames lost on it since the start."""
        if state is not self._hub_state:
            self._hub_state, self._hub_since_ns = state, self._clock_ns()
        self._hub_note = note
        self._frames_dropped = dropped

    def apply(self, message: Message) -> None:
        """Add one message. Messages that are not for dashboards are ignored."""
        match message:
            case StepTotals():
                self._add_step(message)
            case StepDetail():
                if (rank := self._rank(message.rank)) is not None:
                    rank.details.append(message)
                    rank.timelines.add(message)
                    self._bound_timelines()
            case RankInfo():
                self._meet(message)
            case Notice():
                if not any(_is_same(message, known) for known in self._notices):
                    self._notices.append(message)
            case Command():
                self._commands.add(message)
            case CommandOutcome():
                self._commands.take(message, self._steps_of)
            case RankEnd():
                if (rank := self._rank(message.rank)) is not None:
                    rank.learn(end=message)
                    self._by_gpu = None
            case DeviceSample():
                self._add_sample(message)
            case _ if isinstance(message, Facts):
                if (rank := self._rank(message.rank)) is not None:
                    self._learn(rank, message)
            case HubStatus():
                self._replaying = False
                self._hub_dropped = message.dropped
                self._silent = frozenset(message.silent_ranks)
                self.job_ended = message.job_ended
            case Welcome():
                self._welcome(message)

    def snapshot(self) -> Snapshot:
        """Return the present state. Each step and sample appears once as ``fresh`` or ``fresh_samples``."""
        now_ns = self._clock_ns()
        alone = not self._node
        job = self._grown_job()
        self._world_size = job.world_size if job is not None else 0
        announced = range(min(job.world_size, MAX_RANKS)) if job and alone else range(0)
        for number in announced:
            self._rank(number)
        self._refresh_traffic()
        silent = self._silent if self._hub_state is HubState.LIVE else ()
        views = tuple(
            self._ranks[number].view(now_ns, is_silent=number in silent) for number in sorted(self._ranks)
        )
        lost = self._earlier_hubs_dropped + self._hub_dropped + self._frames_dropped + self._unread
        fresh = tuple(self._fresh)
        self._fresh.clear()
        fresh_samples = tuple(self._fresh_samples)
        self._fresh_samples.clear()
        snapshot = Snapshot(
            at_ns=now_ns,
            hub_state=self._hub_state,
            hub_since_ns=self._hub_since_ns,
            hub_note=self._hub_note,
            job=job,
            ranks=views,
            totals=total((), lost + sum(view.dropped for view in views)),
            notices=tuple(self._notices),
            fresh=fresh,
            commands=self._commands.views(
                (view.rank for view in views if view.info is not None and not view.ended),
                now_ns,
                over=self._hub_state is HubState.ENDED,
            ),
            knobs=job_knobs((view.info, view.knobs) for view in views if alone and not view.ended),
            fresh_samples=fresh_samples,
            replaying=self._replaying,
        )
        return self._breakdown.break_down(snapshot) if alone else snapshot

    def _grown_job(self) -> Welcome | None:
        """Return the job with as many ranks as they report: the hub may only know the launcher's number."""
        running = [rank.known.info for rank in self._ranks.values() if not rank.known.ended]
        largest = max((info.world_size for info in running if info is not None), default=0)
        if self._job is None or largest <= self._job.world_size:
            return self._job
        return replace(self._job, world_size=largest)

    def _rank(self, number: int) -> _Rank | None:
        if not 0 <= number < MAX_RANKS:
            return None
        if number not in self._ranks:
            if self._node and len(self._ranks) >= MAX_NODE_RANKS:
                ended = next((rank for rank in self._ranks.values() if rank.known.ended), None)
                if ended is None:
                    return None
                del self._ranks[ended.known.rank]
                self._commands.forget(ended.known.rank)
                self._by_gpu = None
            self._ranks[number] = _Rank(number, self._node)
        return self._ranks[number]

    def _steps_of(self, number: int) -> Sequence[StepTotals]:
        rank = self._ranks.get(number)
        return rank.steps if rank is not None else ()

    def _add_step(self, step: StepTotals) -> None:
        rank = self._rank(step.rank)
        if rank is None or not rank.add(step, max(len(self._ranks), self._world_size)):
            return
        now_ns = self._clock_ns()
        # History is older than its arrival. A hanging job must not look alive for a moment because somebody
        # has just opened a dashboard.
        rank.arrived_ns = min(now_ns, step.start_ns + step.step_ns) if self._replaying else now_ns
        if len(self._fresh) >= MAX_FRESH:
            self._fresh.popleft()
            self._unread += 1
        self._fresh.append(step)

    def _add_sample(self, sample: DeviceSample) -> None:
        rank = self._rank(sample.rank)
        if rank is None or not rank.add_sample(sample, self._replaying):
            return
        if len(self._fresh_samples) >= MAX_FRESH:
            self._fresh_samples.popleft()
            self._unread += 1
        self._fresh_samples.append(sample)

    def _learn(self, rank: _Rank, facts: Facts) -> None:
        match facts:
            case MachineFacts():
                rank.learn(machine=facts)
            case DeviceFacts():
                rank.learn(device=facts)
                rank.traffic_due = True
                self._by_gpu = None
            case NumaFacts():
                rank.learn(numa=facts)
            case KnobFacts():
                rank.learn(knobs=facts.knobs)
            case GradientFacts():
                rank.learn(gradients=facts)
            case OwnCost():
                rank.learn(own_cost=facts)
            case EnvironmentFacts():
                rank.learn(environment=facts)
            case RankStalled():
                rank.learn(stalled=facts if facts.hung or facts.stack else None)
            case StackSamples():
                rank.add_stacks(facts, self._replaying)

    def _refresh_traffic(self) -> None:
        due = [rank for rank in self._ranks.values() if rank.traffic_due]
        if due and self._by_gpu is None:
            self._by_gpu = {}
            for rank in self._ranks.values():
                if not rank.known.ended and rank.known.gpu_uuid:
                    self._by_gpu.setdefault(rank.known.gpu_uuid, []).append(rank)
        by_gpu = self._by_gpu or {}
        by_nic: dict[tuple[str, str] | None, list[_Rank]] = {}
        for rank in self._ranks.values() if due else ():
            if rank.nic is not None and not rank.known.ended:
                by_nic.setdefault(rank.nic, []).append(rank)
        for rank in due:
            rank.traffic_due = False
            if (device := rank.known.device) is not None and (sharers := by_gpu.get(device.gpu_uuid)):
                infos = [each.known.info for each in sharers]
                traffic = traffic_of(
                    device,
                    rank.samples,
                    [each.window for each in sharers],
                    by_gpu,
                    on_cpu=any(info is not None and info.source == "host" for info in infos),
                )
                rank.learn(traffic=traffic)
            if near := by_nic.get(rank.nic):
                rank.learn(nic_traffic=nic_traffic_of(rank.samples, [each.window for each in near]))

    def _bound_timelines(self) -> None:
        """Drop the oldest timelines beyond MAX_TIMELINE_BYTES, which ranks may have that were compared."""
        kept = [rank.timelines for rank in self._ranks.values() if rank.timelines.size_bytes]
        while sum(each.size_bytes for each in kept) > MAX_TIMELINE_BYTES:
            oldest = min((each for each in kept if each.size_bytes), key=lambda each: each.oldest_step)
            oldest.drop_oldest()

    def _meet(self, info: RankInfo) -> None:
        rank = self._rank(info.rank)
        if rank is None:
            return
        if rank.known.info is not None and rank.known.info.pid != info.pid:
            # Another process has taken its place.
            rank = self._ranks[info.rank] = _Rank(info.rank, self._node)
            self._commands.forget(info.rank)
        rank.learn(info=info, end=None)
        self._by_gpu = None

    def _welcome(self, welcome: Welcome) -> None:
        if self._job is not None and self._job.job != welcome.job:
            self._ranks.clear()
            self._notices.clear()
            self._commands.clear()
            self._breakdown = WaitBreakdown()
            self._fresh.clear()
            self._fresh_samples.clear()
            self._by_gpu = None
        self._earlier_hubs_dropped += self._hub_dropped
        self._hub_dropped = 0
        self._job = welcome
        self._silent = frozenset()
        self._replaying = True
        self.job_ended = False


def _is_same(notice: Notice, known: Notice) -> bool:
    """Whether both are the same notice, received twice."""
    if (notice.rank, notice.level, notice.text) != (known.rank, known.level, known.text):
        return False
    return abs(notice.at_ns - known.at_ns) < SHIFTED_NS
