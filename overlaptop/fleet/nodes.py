"""What the connections to a job's nodes are together. Pure."""

from collections.abc import Iterable, Sequence

from overlaptop.fleet.snapshot import HubState, NodeView, RankView
from overlaptop.text import named_ranks

_BEST_FIRST = (HubState.LIVE, HubState.STALE, HubState.WAITING, HubState.LOST, HubState.ENDED)
"""The job's connection is as good as that of its best node."""


def out_of_reach(what: str, nodes: Iterable[NodeView], ranks: Iterable[RankView]) -> str:
    """Return why a ``what`` cannot reach every rank of the job. Empty if it can."""
    nodes = tuple(nodes)
    if lost := [node.name for node in nodes if node.lost]:
        why = f"{', '.join(lost[:3])}{' and others' if len(lost) > 3 else ''} cannot be reached"
    elif readonly := [node.name for node in nodes if node.ranks and node.readonly]:
        why = f"{readonly[0]} is read-only"
    elif unseen := [view.rank for view in ranks if view.info is None]:
        have = "have" if len(unseen) > 1 else "has"
        why = f"{named_ranks(unseen)} {have} not been seen (is their host watched?)"
    else:
        return ""
    return f"{why}: a {what} needs all ranks"


def best_connection(
    nodes: Sequence[NodeView], with_job: Sequence[NodeView], waiting: str, at_ns: int
) -> tuple[HubState, int, str]:
    """Return the best connection's state, its start (Unix time) and note, of the nodes with the job."""
    if not with_job:
        return HubState.WAITING, min((node.since_ns for node in nodes), default=at_ns), waiting
    state = min((node.hub_state for node in with_job), key=_BEST_FIRST.index)
    alike = [node for node in with_job if node.hub_state is state]
    if state is HubState.LIVE:
        return state, min(node.since_ns for node in alike), ""
    newest = max(alike, key=lambda node: node.since_ns)
    note = newest.note if len(nodes) == 1 or not newest.note else f"{newest.name}: {newest.note}"
    return state, newest.since_ns, note
