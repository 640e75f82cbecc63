"""Merges the Snapshots of several nodes into one Snapshot of the job. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from overlaptop.fleet.commands import MAX_COMMANDS, UNANSWERED_NS, CommandView, together
from overlaptop.fleet.job_state import MAX_NOTICES
from overlaptop.fleet.knobs import JobKnob, job_knobs
from overlaptop.fleet.snapshot import HubState, NodeView, RankView, Snapshot
from overlaptop.fleet.totals import total
from overlaptop.fleet.wait_breakdown import WaitBreakdown
from overlaptop.text import runs
from overlaptop.wire.bounds import MAX_RANKS
from overlaptop.wire.devices import DeviceSample
from overlaptop.wire.messages import Notice, StepTotals, Welcome

_BEST_FIRST = (HubState.LIVE, HubState.STALE, HubState.WAITING, HubState.LOST, HubState.ENDED)
"""The job's connection is as good as that of its best node."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node and the job's state on it."""

    node: NodeView
    """Its ``ranks``, and all fields derived from them, are not set yet."""
    snapshot: Snapshot
    """From a JobSession or JobState of this node alone."""


class Merger:
    """Merges the nodes' Snapshots each tick, and remembers the node of each rank."""

    def __init__(self) -> None:
        self._owners: dict[int, str] = {}
        self._job = ""
        self._breakdown = WaitBreakdown()
        self._views: dict[str, tuple[tuple[object, ...], CommandView]] = {}
        """By command: its parts, and the merged view."""

    def merge(self, parts: Sequence[NodeSnapshot], at_ns: int, waiting: str = "") -> Snapshot:
        """Return the job on all nodes together. ``parts``: nodes of one job or none, as named. ``at_ns``:
        Unix time. ``waiting``: the connection's note while no node knows a job.
        """
        owned = self._own(parts)
        nodes = tuple(
            replace(part.node, ranks=tuple(sorted(view.rank for view in views)))
            for part, views in zip(parts, owned, strict=True)
        )
        job = _job(parts)
        ranks = self._ranks(nodes, owned, job)
        if job is not None and job.job != self._job:
            self._job, self._breakdown = job.job, WaitBreakdown()
        hub_state, since_ns, note = _hub_state(nodes, parts, waiting, at_ns)
        snapshot = Snapshot(
            at_ns=at_ns,
            hub_state=hub_state,
            hub_since_ns=since_ns,
            hub_note=note,
            job=job,
            ranks=ranks,
            totals=total((), sum(part.snapshot.totals.dropped for part in parts)),
            notices=self._notices(parts),
            fresh=tuple(
                step for part in parts for step in part.snapshot.fresh if self._is_owned(step, part)
            ),
            commands=self._commands(parts, _unreachable(nodes, at_ns)),
            knobs=_knobs(nodes, ranks, job),
            fresh_samples=tuple(
                sample
                for part in parts
                for sample in part.snapshot.fresh_samples
                if self._is_owned(sample, part)
            ),
            nodes=nodes,
            # Nothing more comes over a lost connection; the node's state shows that.
            replaying=any(
                part.snapshot.replaying and part.node.hub_state in (HubState.LIVE, HubState.STALE)
                for part in parts
            ),
        )
        return self._breakdown.break_down(snapshot)

    def _is_owned(self, message: StepTotals | DeviceSample | RankView, part: NodeSnapshot) -> bool:
        return self._owners.get(message.rank) == part.node.name

    def _own(self, parts: Sequence[NodeSnapshot]) -> list[list[RankView]]:
        """Return the ranks of each part. If two parts know a rank (a host with two names, a job restarted
        elsewhere), it belongs to the one that receives from it, and stays there.
        """
        best: dict[int, tuple[tuple[bool, bool, bool], int, RankView]] = {}
        for index, part in enumerate(parts):
            name, live = part.node.name, part.node.hub_state is HubState.LIVE
            for view in part.snapshot.ranks:
                if view.info is None and view.last is None:
                    continue
                merit = (live, not view.ended, self._owners.get(view.rank) == name)
                held = best.get(view.rank)
                if held is None or merit > held[0]:
                    best[view.rank] = (merit, index, view)
        self._owners = {rank: parts[index].node.name for rank, (_, index, _) in best.items()}
        owned: list[list[RankView]] = [[] for _ in parts]
        for _, index, view in best.values():
            owned[index].append(view)
        return owned

    def _ranks(
        self, nodes: Sequence[NodeView], owned: Sequence[list[RankView]], job: Welcome | None
    ) -> tuple[RankView, ...]:
        views: dict[int, RankView] = {}
        for node, own in zip(nodes, owned, strict=True):
            for view in own:
                views[view.rank] = structs.replace(view, node_lost=True) if node.lost else view
        for rank in range(min(job.world_size, MAX_RANKS)) if job is not None else ():
            if rank not in views:
                views[rank] = RankView(rank)
        return tuple(views[rank] for rank in sorted(views))

    def _notices(self, parts: Sequence[NodeSnapshot]) -> tuple[Notice, ...]:
        found: list[Notice] = []
        for part in parts:
            # A relay sends its own notices as rank 0, whichever node has that rank.
            twice = {view.rank for view in part.snapshot.ranks if not self._is_owned(view, part)}
            found += [notice for notice in part.snapshot.notices if notice.rank not in twice]
        return tuple(sorted(found, key=lambda notice: notice.at_ns)[-MAX_NOTICES:])

    def _commands(
        self, parts: Sequence[NodeSnapshot], unreachable: dict[int, str]
    ) -> tuple[CommandView, ...]:
        known: dict[str, list[CommandView]] = {}
        for part in parts:
            for view in part.snapshot.commands:
                known.setdefault(view.id, []).append(view)
        lost = tuple(unreachable.items())
        made = {}
        for key, views in known.items():
            inputs = lost, tuple(views)
            earlier = self._views.get(key)
            # Equal values are usually the same objects here, so the comparison is fast.
            is_same = earlier is not None and earlier[0] == inputs
            made[key] = earlier if earlier and is_same else (inputs, together(views, unreachable))
        self._views = made
        merged = (view for _, view in made.values())
        return tuple(sorted(merged, key=lambda view: view.at_ns)[-MAX_COMMANDS:])


def _knobs(
    nodes: Sequence[NodeView], ranks: Sequence[RankView], job: Welcome | None
) -> tuple[JobKnob, ...]:
    knobs = job_knobs((view.info, view.knobs) for view in ranks if not view.ended)
    why = out_of_reach("change", nodes, ranks)
    if not why or job is None:
        return knobs
    return tuple(replace(knob, refusal=knob.refusal or why) for knob in knobs)


def out_of_reach(what: str, nodes: Iterable[NodeView], ranks: Iterable[RankView]) -> str:
    """Return why a ``what`` cannot reach every rank of the job. Empty if it can."""
    nodes = tuple(nodes)
    if lost := [node.name for node in nodes if node.lost]:
        why = f"{', '.join(lost[:3])}{' and others' if len(lost) > 3 else ''} cannot be reached"
    elif readonly := [node.name for node in nodes if node.ranks and node.readonly]:
        why = f"{readonly[0]} is read-only"
    elif unseen := [view.rank for view in ranks if view.info is None]:
        why = f"{_describe(unseen)} not been seen (is their host watched?)"
    else:
        return ""
    return f"{why}: a {what} needs all ranks"


def _describe(numbers: Sequence[int]) -> str:
    """``rank 3 has``, ``ranks 8-15 have``, ``ranks 4, 8-15 and others have``; ``numbers`` ascend."""
    if len(numbers) == 1:
        return f"rank {numbers[0]} has"
    found = runs(numbers)
    return f"ranks {', '.join(found[:4])}{' and others' if len(found) > 4 else ''} have"


def _job(parts: Sequence[NodeSnapshot]) -> Welcome | None:
    """Return the first node's description of the job, with the earliest start."""
    jobs = [part.snapshot.job for part in parts if part.snapshot.job is not None]
    if not jobs:
        return None
    return structs.replace(
        jobs[0],
        world_size=max(job.world_size for job in jobs),
        started_ns=min(job.started_ns for job in jobs),
    )


def _hub_state(
    nodes: Sequence[NodeView], parts: Sequence[NodeSnapshot], waiting: str, at_ns: int
) -> tuple[HubState, int, str]:
    """Return the best connection's state, its start (Unix time) and note. Skips nodes without the job."""
    with_job = [
        node for node, part in zip(nodes, parts, strict=True) if node.ranks or part.snapshot.job is not None
    ]
    if not with_job:
        since_ns = min((node.since_ns for node in nodes), default=at_ns)
        return HubState.WAITING, since_ns, waiting
    state = min((node.hub_state for node in with_job), key=_BEST_FIRST.index)
    alike = [node for node in with_job if node.hub_state is state]
    if state is HubState.LIVE:
        return state, min(node.since_ns for node in alike), ""
    newest = max(alike, key=lambda node: node.since_ns)
    note = newest.note if len(nodes) == 1 or not newest.note else f"{newest.name}: {newest.note}"
    return state, newest.since_ns, note


def _unreachable(nodes: Iterable[NodeView], at_ns: int) -> dict[int, str]:
    """Return the ranks that were unreachable for longer than the limit for silent ones, and why."""
    return {
        rank: f"rank {rank} is on {node.name}, which cannot be reached"
        for node in nodes
        if node.lost and at_ns - node.since_ns > UNANSWERED_NS
        for rank in node.ranks
    }
