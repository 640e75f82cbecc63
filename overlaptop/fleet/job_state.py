"""JobState: builds the state of a running job from its messages. Pure: no I/O, no threads."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from overlaptop.fleet.commands import MAX_COMMANDS, UNANSWERED_NS, CommandView, LiveOverlap, together
from overlaptop.fleet.knobs import job_knobs
from overlaptop.fleet.nodes import best_connection, out_of_reach
from overlaptop.fleet.rank_state import SHIFTED_NS, RankState
from overlaptop.fleet.snapshot import HubState, NodeView, RankView, Snapshot
from overlaptop.fleet.totals import total
from overlaptop.fleet.traffic import nic_traffic_of, traffic_of
from overlaptop.fleet.wait_breakdown import WaitBreakdown
from overlaptop.hub.executions import CommandProgress
from overlaptop.wire.bounds import MAX_RANKS
from overlaptop.wire.commands import ENDED, SENT, SILENT, TRIAL, Command, CommandOutcome
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import (
    Facts,
    HubStatus,
    Notice,
    RankEnd,
    RankInfo,
    StackSamples,
    StepDetail,
    StepTotals,
    Welcome,
)
from overlaptop.wire.schema import Message

MAX_TIMELINE_BYTES = 64 << 20  # Of all ranks together: as much as the compared ranks may have
MAX_NOTICES = 200


@dataclass(slots=True)
class _Command:
    """A command and its outcome, which may come in any order, and repeatedly."""

    command: Command | None = None
    outcome: CommandOutcome | None = None  # Newest outcome from the hub. None before the first.
    live: dict[int, LiveOverlap] = field(default_factory=dict)  # Of the steps just before, by rank
    view: CommandView | None = None  # View of `outcome`, until a newer one comes


@dataclass(slots=True)
class Hub:
    """One hub: its connection, and what it says of its ranks."""

    since_ns: int  # Unix time of the last change of ``state``
    state: HubState = HubState.WAITING
    note: str = ""
    job: Welcome | None = None
    job_ended: bool = False  # The hub says that every rank has gone
    replaying: bool = False
    silent: frozenset[int] = frozenset()
    dropped: int = 0
    earlier_dropped: int = 0  # By the hubs that it replaced
    frames_dropped: int = 0  # Frames lost on its connection


class JobState:
    """The state of one job, on one node or several. ``apply`` each message in order, then take a
    ``snapshot``.

    ``clock_ns`` returns Unix time. A Welcome from another job empties the JobState. A Welcome from the same
    job, sent by a hub that replaced a dead one, keeps the state. ``node``: the one of several nodes that a
    message comes from.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._job = ""
        self._world_size = 0
        self._hubs: dict[str, Hub] = {}
        self._away: frozenset[str] = frozenset()  # Nodes that were not live in the last Snapshot
        self._ranks: dict[int, RankState] = {}
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._commands: dict[str, dict[str, _Command]] = {}  # By id and node
        self._merged: dict[str, tuple[object, CommandView]] = {}
        """By id: its parts, and the view of all nodes together."""
        self._breakdown = WaitBreakdown()
        self._fresh: list[StepTotals] = []
        self._fresh_samples: list[DeviceSample] = []

    def hub(self, node: str = "") -> Hub:
        if node not in self._hubs:
            self._hubs[node] = Hub(self._clock_ns())
        return self._hubs[node]

    def every_rank_ended(self, node: str = "") -> bool:
        seen = [rank for rank in self._of_node(node) if rank.known.info is not None or rank.steps]
        return bool(seen) and all(rank.known.ended for rank in seen)

    def any_rank_failed(self, node: str = "") -> bool:
        return any(rank.known.end is not None and rank.known.end.failed for rank in self._of_node(node))

    def _of_node(self, node: str) -> list[RankState]:
        return [rank for rank in self._ranks.values() if rank.known.node == node]

    def set_hub_state(self, state: HubState, note: str = "", dropped: int = 0, node: str = "") -> None:
        """Set the connection's state, its reason, and the frames lost on it since the start."""
        hub = self.hub(node)
        if state is not hub.state:
            hub.state, hub.since_ns = state, self._clock_ns()
        hub.note, hub.frames_dropped = note, dropped

    def apply(self, message: Message, node: str = "") -> None:
        """Add one message. Messages that are not for dashboards are ignored."""
        hub = self.hub(node)
        match message:
            case StepTotals() | StepDetail() | DeviceSample() | StackSamples() | RankInfo() | RankEnd():
                if (rank := self._rank(message.rank, node)) is not None:
                    self._apply_of_rank(message, rank, hub)
            case Notice():
                text, at_ns = (message.rank, message.level, message.text), message.at_ns
                alike = (each for each in self._notices if (each.rank, each.level, each.text) == text)
                if all(abs(at_ns - each.at_ns) >= SHIFTED_NS for each in alike):
                    self._notices.append(message)
            case Command():
                # The hub sends it a second time, with the hub's time.
                known = self._command(message.id, node)
                known.command, known.view = message, None
            case CommandOutcome():
                self._take_outcome(message, node)
            case HubStatus():
                hub.replaying, hub.dropped, hub.job_ended = False, message.dropped, message.job_ended
                hub.silent = frozenset(message.silent_ranks)
            case Welcome():
                self._welcome(message, hub, node)
            case _ if isinstance(message, Facts):
                if (rank := self._rank(message.rank, node)) is not None:
                    rank.learn_facts(message)

    def _apply_of_rank(self, message: Message, rank: RankState, hub: Hub) -> None:
        match message:
            case StepTotals():
                self._add_step(rank, message, hub)
            case StepDetail():
                rank.add_detail(message)
                self._bound_timelines()
            case DeviceSample():
                if rank.add_sample(message, hub.replaying):
                    self._fresh_samples.append(message)
            case StackSamples():
                rank.add_stacks(message, hub.replaying)
            case RankInfo():
                if rank.known.info is not None and rank.known.info.pid != message.pid:
                    # Another process has taken its place.
                    rank = self._ranks[message.rank] = RankState(message.rank, rank.known.node)
                    self._forget_commands(message.rank)
                rank.learn(info=message, end=None)
            case RankEnd():
                rank.learn(end=message)

    def snapshot(self, nodes: Sequence[NodeView] = (), waiting: str = "") -> Snapshot:
        """Return the present state. Each step and sample appears once as ``fresh`` or ``fresh_samples``.

        ``nodes``: those of a job on several, without their ranks. ``waiting``: the connection's note while
        no node knows a job.
        """
        now_ns = self._clock_ns()
        self._refresh_traffic()
        on_node: dict[str, list[int]] = {}
        for number, rank in sorted(self._ranks.items()) if nodes else ():
            if rank.known.info is not None or rank.steps:
                on_node.setdefault(rank.known.node, []).append(number)
        nodes = tuple(dataclasses.replace(node, ranks=tuple(on_node.get(node.name, ()))) for node in nodes)
        self._away = frozenset(node.name for node in nodes if node.hub_state is not HubState.LIVE)
        lost = {rank for node in nodes if node.lost for rank in node.ranks}
        views = {number: self._view(rank, now_ns, lost) for number, rank in self._ranks.items()}
        hubs = [self.hub(node.name) for node in nodes] or [self.hub()]
        job = self._described(hubs)
        for number in range(min(job.world_size, MAX_RANKS)) if job is not None else ():
            views.setdefault(number, RankView(number))
        ranks = tuple(views[number] for number in sorted(views))
        knobs = job_knobs((view.info, view.knobs) for view in ranks if not view.ended)
        if nodes and job is not None and (why := out_of_reach("change", nodes, ranks)):
            knobs = tuple(dataclasses.replace(knob, refusal=knob.refusal or why) for knob in knobs)
        connection = hubs[0].state, hubs[0].since_ns, hubs[0].note
        replaying, notices = hubs[0].replaying, tuple(self._notices)
        if nodes:
            notices = tuple(sorted(notices, key=lambda notice: notice.at_ns))
            with_job = [node for node, hub in zip(nodes, hubs, strict=True) if node.ranks or hub.job]
            connection = best_connection(nodes, with_job, waiting, now_ns)
            # Nothing more comes over a lost connection; the node's state shows that.
            heard = (node for node in nodes if node.hub_state in (HubState.LIVE, HubState.STALE))
            replaying = any(self.hub(node.name).replaying for node in heard)
        dropped = sum(hub.earlier_dropped + hub.dropped + hub.frames_dropped for hub in hubs)
        fresh, fresh_samples = self._fresh, self._fresh_samples
        self._fresh, self._fresh_samples = [], []
        snapshot = Snapshot(
            now_ns,
            *connection,
            job=job,
            ranks=ranks,
            totals=total((), dropped + sum(view.dropped for view in ranks)),
            notices=notices,
            fresh=tuple(fresh),
            commands=self._command_views(nodes, now_ns),
            knobs=knobs,
            fresh_samples=tuple(fresh_samples),
            nodes=nodes,
            replaying=replaying,
        )
        return self._breakdown.break_down(snapshot)

    def _view(self, rank: RankState, now_ns: int, lost: Collection[int]) -> RankView:
        number, hub = rank.known.rank, self.hub(rank.known.node)
        view = rank.view(now_ns, is_silent=hub.state is HubState.LIVE and number in hub.silent)
        return replace(view, node_lost=True) if number in lost else view

    def _described(self, hubs: Sequence[Hub]) -> Welcome | None:
        """Return the first hub's description of the job, with the earliest start and the most ranks: a hub
        may only know the launcher's number.
        """
        jobs = [hub.job for hub in hubs if hub.job is not None]
        if not jobs:
            return None
        infos = (rank.known.info for rank in self._ranks.values() if not rank.known.ended)
        sizes = (info.world_size for info in infos if info is not None)
        self._world_size = max((*(job.world_size for job in jobs), *sizes))
        started_ns = min(job.started_ns for job in jobs)
        return replace(jobs[0], world_size=self._world_size, started_ns=started_ns)

    def _rank(self, number: int, node: str) -> RankState | None:
        """Return the rank. None if it is received from another node (a host with two names), which keeps it
        until it is lost.
        """
        if number not in self._ranks and 0 <= number < MAX_RANKS:
            self._ranks[number] = RankState(number, node)
        rank = self._ranks.get(number)
        if rank is not None and rank.known.node != node:
            if rank.known.node not in self._away and not rank.known.ended:
                return None
            rank.learn(node=node)
        return rank

    def _command(self, key: str, node: str) -> _Command:
        """Return the command with this id, a new one if need be."""
        if key not in self._commands:
            if len(self._commands) >= MAX_COMMANDS:
                trials = (
                    each
                    for each, parts in self._commands.items()
                    if any(part.command and part.command.name == TRIAL for part in parts.values())
                )
                del self._commands[next(trials, next(iter(self._commands)))]
            self._commands[key] = {}
        return self._commands[key].setdefault(node, _Command())

    def _take_outcome(self, outcome: CommandOutcome, node: str) -> None:
        known = self._command(outcome.command, node)
        known.outcome, known.view = outcome, None
        for each in outcome.ranks if outcome.step is not None else ():
            # Steps arrive a little late, and old ones are dropped: keep the look that saw the most steps.
            rank = self._ranks.get(each.rank)
            found = rank.live_overlap(outcome.step or 0) if rank is not None else None
            held = known.live.get(each.rank)
            if found is not None and (held is None or found.steps >= held.steps):
                known.live[each.rank] = found

    def _command_views(self, nodes: Sequence[NodeView], now_ns: int) -> tuple[CommandView, ...]:
        """Return all commands, oldest first."""
        unreachable = {
            rank: f"rank {rank} is on {node.name}, which cannot be reached"
            for node in nodes
            if node.lost and now_ns - node.since_ns > UNANSWERED_NS
            for rank in node.ranks
        }
        found: list[CommandView] = []
        merged: dict[str, tuple[object, CommandView]] = {}
        for key, parts in self._commands.items():
            views = [
                self._view_of(part, part.command, node, now_ns)
                for node, part in parts.items()
                if part.command is not None
            ]
            if len(views) > 1 or (views and unreachable):
                # Equal values are usually the same objects here, so the comparison is fast.
                inputs, held = (unreachable, views), self._merged.get(key)
                if held is None or held[0] != inputs:
                    held = inputs, together(views, unreachable)
                merged[key], views = held, [held[1]]
            found += views
        self._merged = merged
        # A command sent from here may be known before the hub's history of earlier ones arrives.
        return tuple(sorted(found, key=lambda view: view.at_ns))

    def _view_of(self, known: _Command, command: Command, node: str, now_ns: int) -> CommandView:
        outcome = known.outcome
        if outcome is None:
            known_there = [rank.known for rank in self._of_node(node) if rank.known.info is not None]
            running = sorted(view.rank for view in known_there if not view.ended)
            execution = CommandProgress.begin(command, running)
            if now_ns - command.at_ns <= UNANSWERED_NS:
                return CommandView.of(command, execution.unanswered(), {})
            execution.lose_all(SILENT)
            return CommandView.of(command, execution.outcome(), {})
        if self.hub(node).state is HubState.ENDED and not outcome.done:  # nothing more will be published
            execution = CommandProgress.resume(command, outcome)
            execution.lose_all(ENDED)
            return CommandView.of(command, execution.outcome(), known.live)
        if known.view is None:
            known.view = CommandView.of(command, outcome, known.live)
        return known.view

    def _forget_commands(self, rank: int) -> None:
        """Drop the commands that this rank reported on: another process has taken its place."""
        for key, parts in list(self._commands.items()):
            outcomes = [part.outcome for part in parts.values() if part.outcome is not None]
            reported = (each for outcome in outcomes for each in outcome.ranks if each.reported != SENT)
            if any(each.rank == rank for each in reported):
                del self._commands[key]

    def _add_step(self, rank: RankState, step: StepTotals, hub: Hub) -> None:
        if not rank.add(step, max(len(self._ranks), self._world_size)):
            return
        now_ns = self._clock_ns()
        # History is older than its arrival. A hanging job must not look alive for a moment because somebody
        # has just opened a dashboard.
        rank.arrived_ns = min(now_ns, step.start_ns + step.step_ns) if hub.replaying else now_ns
        self._fresh.append(step)

    def _refresh_traffic(self) -> None:
        due = [rank for rank in self._ranks.values() if rank.traffic_due]
        by_gpu: dict[str, list[RankState]] = {}
        by_nic: dict[tuple[str, str] | None, list[RankState]] = {}
        for rank in self._ranks.values() if due else ():
            if not rank.known.ended:
                by_gpu.setdefault(rank.known.gpu_uuid, []).append(rank)
                by_nic.setdefault(rank.nic, []).append(rank)
        for rank in due:
            rank.traffic_due = False
            device, nic = rank.known.device, rank.nic
            if device is not None and device.gpu_uuid and (sharers := by_gpu.get(device.gpu_uuid)):
                infos = [each.known.info for each in sharers]
                traffic = traffic_of(
                    device,
                    rank.samples,
                    [each.window for each in sharers],
                    by_gpu,
                    on_cpu=any(info is not None and info.source == "host" for info in infos),
                )
                rank.learn(traffic=traffic)
            if nic is not None and (near := by_nic.get(nic)):
                rank.learn(nic_traffic=nic_traffic_of(rank.samples, [each.window for each in near]))

    def _bound_timelines(self) -> None:
        """Drop the oldest timelines beyond MAX_TIMELINE_BYTES, which ranks may have that were compared."""
        kept = [rank for rank in self._ranks.values() if rank.timelines]
        while sum(rank.timeline_bytes for rank in kept) > MAX_TIMELINE_BYTES:
            oldest = (rank for rank in kept if rank.timelines)
            min(oldest, key=lambda rank: rank.timelines[0].step).drop_timeline()

    def _welcome(self, welcome: Welcome, hub: Hub, node: str) -> None:
        if self._job not in ("", welcome.job):
            for held in (self._ranks, self._notices, self._commands, self._fresh, self._fresh_samples):
                held.clear()
            self._breakdown = WaitBreakdown()
        for parts in self._commands.values():
            known = parts.get(node)
            if known is not None and known.outcome is not None and not known.outcome.done:
                # The hub sends it again, unless it has replaced another one.
                known.outcome = known.view = None
        self._job, hub.job = welcome.job, welcome
        hub.earlier_dropped, hub.dropped = hub.earlier_dropped + hub.dropped, 0
        hub.silent, hub.replaying, hub.job_ended = frozenset(), True, False
