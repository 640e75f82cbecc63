"""The state of the connection to each host, as lines."""

from overlaptop.fleet.snapshot import HubState, NodeView
from overlaptop.report.hosts import HUB_GLYPHS, Group, carries, known_within, note, status
from overlaptop.text import printable
from overlaptop.tui.draw.layout import Item, elided, fit, line_width
from overlaptop.tui.draw.segments import FAINT, Segment, StyledLine, TextStyle, dim


def heading(group: Group, now_ns: int, width: int) -> StyledLine:
    """Return a thin line: the node's name, its connection, the clock's error, and the data rate."""
    node = group.node
    if node is None:
        return _ruled((Segment("── ", FAINT), dim(printable(group.words))), (), width)
    left: StyledLine = (Segment("── ", FAINT), *host_status(node, now_ns))
    right = []
    if node.hub_state is HubState.LIVE:
        if node.residual_ns is not None:
            right.append(Item((dim(f"clock {known_within(node.residual_ns)}"),), 1))
        right.append(Item((dim(f"{carries(node):>10}"),), 2))
    space = width - line_width(left) - 3
    facts = fit(right, [], space) if right and line_width(right[0].line) <= space else ()
    return _ruled(left, facts, width)


def state_words(node: NodeView, now_ns: int) -> StyledLine:
    """Return such as ``● live`` or ``○ lost since 14:03:10 (12 s)``."""
    glyph, color = HUB_GLYPHS[node.hub_state]
    return (Segment(f"{glyph} {status(node, now_ns)}".rstrip(), TextStyle(color)),)


def host_status(node: NodeView, now_ns: int) -> StyledLine:
    """Return such as ``gpu-a  ● live``, with the reason if it is not live."""
    name = Segment(f"{printable(node.name)}  ", TextStyle("accent"))
    return (name, *state_words(node, now_ns), dim(note(node)))


def _ruled(left: StyledLine, right: StyledLine, width: int) -> StyledLine:
    space = width - line_width(left) - line_width(right) - (2 if right else 1)
    if space <= 0:
        return elided((*left, *right), width)
    rule = Segment(" " + "─" * space + (" " if right else ""), FAINT)
    return (*left, rule, *right)
