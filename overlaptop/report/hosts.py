"""The hosts that are watched: which ranks stand below which, and how the connection to each is. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import NamedTuple

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import HubState, NodeView, RankView, Snapshot
from overlaptop.text import UNKNOWN, age, byte_count, clock, plural, printable, shortened
from overlaptop.wire.commands import WRITTEN

HUB_GLYPHS = {
    HubState.WAITING: ("◌", "warning"),
    HubState.LIVE: ("●", "live"),
    HubState.STALE: ("○", "warning"),
    HubState.LOST: ("○", "error"),
    HubState.ENDED: ("■", "dim"),
    HubState.TRACE: ("■", "text"),
}
"""A glyph and the name of its colour."""
NOT_SEEN = "not seen yet: their host may not be watched"
MOST_EMPTY = 3
"""Hosts without ranks that have a line each, so that one sees why."""
_HOSTS_CHARS = 60
_THIS_MACHINE = "local://"


class Group(NamedTuple):
    """A line of its own in the table of ranks, and the ranks below it."""

    node: NodeView | None
    """The host; None: the line is `words`."""
    ranks: tuple[RankView, ...] = ()
    words: str = ""


def by_node(rows: Iterable[RankView]) -> list[RankView]:
    """The ranks of each node together, nodes in the order of their first rank; last those of none."""
    views = list(rows)
    place = {node: at for at, node in enumerate(dict.fromkeys(view.node for view in views))}
    return sorted(views, key=lambda view: (view.node == "", place[view.node]))


def groups(rows: Iterable[RankView], nodes: Sequence[NodeView], *, empty: bool) -> list[Group]:
    """``rows``, as `by_node` puts them in order, below their nodes. ``empty``: also nodes without any."""
    known = {node.name: node for node in nodes}
    ranks = {name: tuple(views) for name, views in groupby(rows, lambda view: view.node)}
    nowhere = ranks.pop("", ())
    shown = [Group(known.get(name), views, name) for name, views in ranks.items()]
    without = [node for node in nodes if empty and node.name not in ranks]
    if len(without) <= MOST_EMPTY:
        shown += map(Group, without)
    else:
        lost = sum(node.hub_state is HubState.LOST for node in without)
        words = f"{len(without)} hosts without ranks of this job, {lost} of them not reached (H)"
        shown.append(Group(None, (), words))
    return [*shown, Group(None, nowhere, NOT_SEEN)] if nowhere else shown


def in_words(node: NodeView, now_ns: int) -> str:
    """``gpu-a  ● live``, and where the connection is not, why."""
    glyph, _ = HUB_GLYPHS[node.hub_state]
    words = f"{printable(node.name)}  {glyph} {state_of(node)}{since(node, now_ns)}".rstrip()
    if not node.note or node.hub_state is HubState.LIVE:
        return words
    return f"{words}{' ' if node.hub_state is HubState.WAITING else '  '}{printable(node.note)}"


def carries(node: NodeView) -> str:
    """``12.0 KiB/s``."""
    return UNKNOWN if node.bytes_per_s is None else f"{byte_count(round(node.bytes_per_s))}/s"


def known_within(residual_ns: int) -> str:
    """``±0.3 ms``: no more digits than stay as they are for a while, and never less than it is."""
    return f"±{math.ceil(residual_ns / 100_000) / 10:.1f} ms"


def lost_since(view: RankView, snapshot: Snapshot, now_ns: int) -> str:
    """``gpu-b lost since 14:03:10 (12 s)``, of a rank's node; empty where it is not lost."""
    node = next((each for each in snapshot.nodes if each.name == view.node), None)
    if node is None or not view.node_lost:
        return ""
    return f"{printable(node.name)} {state_of(node)}{since(node, now_ns)}"


def live_words(snapshot: Snapshot) -> str:
    """``2 of 3 hosts``; ``3 hosts`` where all are live."""
    live, count = sum(node.hub_state is HubState.LIVE for node in snapshot.nodes), len(snapshot.nodes)
    words = plural(count, "host")
    return words if live == count else f"{live} of {words}"


def is_there(name: str) -> bool:
    """Whether a node of that name is another machine than this one; empty: there are no nodes."""
    return name not in ("", _THIS_MACHINE)


def path_there(name: str, path: str) -> str:
    """A path on the node of that name as ``host:path``; as it is where that is this machine."""
    return f"{name}:{path}" if is_there(name) else path


def places(capture: CommandView, ranks: Iterable[RankView]) -> list[str]:
    """The folders that a capture's traces were written to, each with its host: ``gpu-a:/home/me/20260101``.

    What several hosts have under the same path is named once.
    """
    homes = {view.rank: view.node for view in ranks}
    found: dict[str, list[str]] = {}
    for each in capture.ranks:
        if each.state == WRITTEN:
            hosts = found.setdefault(str(PurePath(each.text).parent), [])
            if (host := homes.get(each.rank, "")) not in hosts:
                hosts.append(host)
    return [
        path_there(hosts[0], folder)
        if len(hosts) == 1
        else f"{folder} on {shortened(', '.join(hosts), _HOSTS_CHARS)}"
        for folder, hosts in found.items()
    ]


def state_of(node: NodeView) -> str:
    """``live``, ``lost``; of one that is waited for, its note says more."""
    if node.hub_state is HubState.STALE:
        return "silent"
    if node.hub_state is HubState.LOST and not node.ranks:
        return "not reached"
    if node.hub_state is HubState.WAITING:
        return "" if node.note else "connecting"
    return str(node.hub_state.value)


def since(node: NodeView, now_ns: int) -> str:
    """`` since 14:03:10 (12 s)``, of a connection that is down."""
    if node.hub_state in (HubState.LIVE, HubState.WAITING):
        return ""
    return f" since {clock(node.since_ns)} ({age(max(0, now_ns - node.since_ns) / 1e9)})"
