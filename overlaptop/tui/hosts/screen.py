"""The watched hosts one after the other, with all facts about each connection."""

from typing import ClassVar

from overlaptop.fleet.snapshot import HubState, NodeView
from overlaptop.report.hosts import carries, known_within, live_words
from overlaptop.text import UNKNOWN, age, clock, duration, printable, runs_of
from overlaptop.tui.draw.layout import elided, hanging, paragraph
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.help.glossary import HOSTS
from overlaptop.tui.model.keys import HOSTS_KEYS, bindings
from overlaptop.tui.widgets.host_lines import state_words
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import Page

_INDENT = 4


class HostsPage(Page):
    """A heading for each host, and its facts below."""

    def lines(self, width: int) -> list[StyledLine]:
        snapshot = self.state.snapshot
        lines: list[StyledLine] = [(bold(" Hosts"), dim(f"  {live_words(snapshot)}")), ()]
        for node in snapshot.nodes:
            lines += [*_host_lines(node, self.state.now_ns, width), ()]
        return lines


class HostsScreen(PageScreen[HostsPage]):
    """The page, and its keys."""

    title_in_help = HOSTS
    BINDINGS: ClassVar = bindings(HOSTS_KEYS)
    view_class, below_header = HostsPage, False

    def action_retry(self) -> None:
        if (connections := self.dashboard.options.connections) is not None:
            connections.retry()


def _host_lines(node: NodeView, now_ns: int, width: int) -> list[StyledLine]:
    status = state_words(node, now_ns)
    if node.hub_state is HubState.WAITING:
        status = (Segment("◌ waiting", TextStyle("warning")),)
    elif node.hub_state is HubState.LIVE:
        status = (*status, dim(f" since {clock(node.since_ns)} ({age((now_ns - node.since_ns) / 1e9)})"))
    name = Segment(f" {printable(node.name)}", TextStyle("accent", bold=True))
    lines: list[StyledLine] = [elided((name, Segment("   "), *status), width)]
    lines += paragraph(printable(node.note), width, TextStyle("warning"), indent=_INDENT)
    for label, text in (
        ("ranks", runs_of(node.ranks) or "none of this job"),
        ("clock", _clock(node)),
        ("receives", carries(node)),
    ):
        lines.append((dim(f"{'':{_INDENT}}{label:<10}"), Segment(text)))
    if node.detail:
        lines.append((dim(f"{'':{_INDENT}}output of its command:"),))
        for line in node.detail.splitlines():
            lines += hanging((Segment(" " * (_INDENT + 2)),), printable(line.expandtabs(4)), width)
    return lines


def _clock(node: NodeView) -> str:
    """Return how far the host's clock is ahead of ours, with the error."""
    if node.offset_ns is None or node.residual_ns is None:
        return UNKNOWN
    known = known_within(node.residual_ns)
    if abs(node.offset_ns) <= node.residual_ns:
        return f"as this machine's, {known}"
    return f"{duration(abs(node.offset_ns))} {'ahead' if node.offset_ns > 0 else 'behind'}, {known}"
