"""The watched hosts: their ranks, and the state of each connection. Pure."""

import math
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import NamedTuple

from overlaptop.fleet.commands import CommandView
from overlaptop.fleet.snapshot import HubState, NodeView, RankView, Snapshot, filled_hosts
from overlaptop.text import UNKNOWN, age, byte_count, clock, named_ranks, plural, printable, shortened
from overlaptop.wire.commands import WRITTEN

HUB_GLYPHS = {
    HubState.WAITING: ("◌", "warning"),
    HubState.LIVE: ("●", "live"),
    HubState.STALE: ("○", "warning"),
    HubState.LOST: ("○", "error"),
    HubState.ENDED: ("■", "dim"),
    HubState.TRACE: ("■", "text"),
}
"""Glyph and colour name."""
NOT_SEEN = "not seen yet: their host may not be watched"
MOST_EMPTY = 3  # Most hosts without ranks that get a line each, so that the reason is visible
_HOSTS_CHARS = 60
_THIS_MACHINE = "local://"


class Group(NamedTuple):
    """A line of the rank table, and the ranks below it."""

    node: NodeView | None  # The host; None: `words` is the line
    ranks: tuple[RankView, ...] = ()
    words: str = ""


def by_node(rows: Iterable[RankView]) -> list[RankView]:
    """Return the ranks by node, nodes in the order of their first rank; ranks without a node last."""
    views = list(rows)
    place = {node: at for at, node in enumerate(dict.fromkeys(view.node for view in views))}
    return sorted(views, key=lambda view: (view.node == "", place[view.node]))


def groups(rows: Iterable[RankView], nodes: Sequence[NodeView], *, empty: bool) -> list[Group]:
    """Group ``rows``, ordered by `by_node`, below their nodes. ``empty``: include nodes without ranks."""
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


def ranks_and_hosts(ranks: Collection[int], views: Iterable[RankView]) -> str:
    """Return ``ranks 0-3``; if they fill hosts ``ranks 64-71, all of gpu-9``. ``ranks`` ascend."""
    words, hosts = named_ranks(ranks), filled_hosts(ranks, views)
    if not hosts:
        return words
    return f"{words}, all of {printable(hosts[0]) if len(hosts) == 1 else plural(len(hosts), 'host')}"


def describe(node: NodeView, now_ns: int) -> str:
    """Return such as ``gpu-a  ● live``, with the reason if it is not live."""
    glyph, _ = HUB_GLYPHS[node.hub_state]
    return f"{printable(node.name)}  {glyph} {status(node, now_ns)}".rstrip() + note(node)


def status(node: NodeView, now_ns: int) -> str:
    """Return such as ``live`` or ``lost since 14:03:10 (12 s)``; empty if the node's note says more."""
    state = node.hub_state
    if state is HubState.WAITING:
        return "" if node.note else "connecting"
    words = "silent" if state is HubState.STALE else str(state.value)
    if state is HubState.LIVE:
        return words
    if state is HubState.LOST and not node.ranks:
        words = "not reached"
    return f"{words} since {clock(node.since_ns)} ({age(max(0, now_ns - node.since_ns) / 1e9)})"


def note(node: NodeView) -> str:
    """Return why the connection is not live, to follow its status."""
    if not node.note or node.hub_state is HubState.LIVE:
        return ""
    return f"{' ' if node.hub_state is HubState.WAITING else '  '}{printable(node.note)}"


def carries(node: NodeView) -> str:
    return UNKNOWN if node.bytes_per_s is None else f"{byte_count(round(node.bytes_per_s))}/s"


def known_within(residual_ns: int) -> str:
    """Return such as ``±0.3 ms``: rounded up, with digits that stay the same for a while."""
    return f"±{math.ceil(residual_ns / 100_000) / 10:.1f} ms"


def lost_since(view: RankView, snapshot: Snapshot, now_ns: int) -> str:
    """Return such as ``gpu-b lost since 14:03:10 (12 s)`` for a rank's node; empty if it is not lost."""
    node = next((each for each in snapshot.nodes if each.name == view.node), None)
    if node is None or not view.node_lost:
        return ""
    return f"{printable(node.name)} {status(node, now_ns)}"


def live_words(snapshot: Snapshot) -> str:
    live, count = sum(node.hub_state is HubState.LIVE for node in snapshot.nodes), len(snapshot.nodes)
    words = plural(count, "host")
    return words if live == count else f"{live} of {words}"


def is_there(name: str) -> bool:
    """Whether the node of that name is another machine; empty: there are no nodes."""
    return name not in ("", _THIS_MACHINE)


def path_there(name: str, path: str) -> str:
    return f"{name}:{path}" if is_there(name) else path


def places(capture: CommandView, ranks: Iterable[RankView]) -> list[str]:
    """Return a capture's folders with their hosts, ``gpu-a:/home/me/20260101``, a shared one once."""
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
