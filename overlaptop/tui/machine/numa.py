"""The CPUs of the selected rank, and the command to type if they are far from its GPU."""

from collections.abc import Iterable

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import NUMA_MARKS
from overlaptop.text import plural
from overlaptop.tui.draw.layout import hanging, paragraph, titled
from overlaptop.tui.draw.segments import DIM, TEXT, Segment, StyledLine, TextStyle, dim
from overlaptop.wire.devices import NodeShare

_STATES = {"bound": "bound to its GPU's node", "wrong node": "on the wrong node", "no gpu": "no GPU"}


def verdict_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return how near the rank is to its GPU, why, and the command to type."""
    numa = view.numa
    if numa is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
        return [titled("NUMA"), *paragraph(text, width, indent=3)]
    glyph, color = NUMA_MARKS[numa.state]
    verdict = Segment(f"{glyph} {_STATES.get(numa.state, numa.state)}", TextStyle(color, bold=True))
    lines = [
        titled("NUMA", dim(f"rank {view.rank}  "), verdict),
        *paragraph(numa.reason, width, TEXT, indent=3),
    ]
    if numa.advice:
        style = TextStyle("accent", bold=True)
        beside = hanging(_label("to mend it"), numa.advice, width, style)
        if len(beside) > 1:  # each way on its own lines, so that commands are broken only if necessary
            ways = numa.advice.replace(", or ", "\nor ").split("\n")
            below = (line for way in ways for line in paragraph(way, width, style, indent=5))
            beside = [_label("to mend it"), *below]
        lines += beside
    return lines


def process_lines(view: RankView, width: int) -> list[StyledLine]:
    """Return the facts behind the verdict."""
    numa = view.numa
    if numa is None:
        return []
    facts = [
        ("may use", ": ".join(filter(None, (nodes_text(numa.cpu_nodes, "CPU"), numa.cpu_set)))),
        ("threads", nodes_text(numa.threads_by_node, "thread")),
        ("policy", numa.memory_policy),
    ]
    if numa.nic or numa.gpu_node is not None:
        on = f" on node {numa.nic_node}" if numa.nic_node is not None else ", node unknown"
        facts.append(("nearest NIC", f"{numa.nic}{on}" if numa.nic else ""))
    if numa.gpu_memory_node is not None:
        facts.append(("GPU memory", f"is node {numa.gpu_memory_node}"))
    lines: list[StyledLine] = [titled("process", dim(f"of rank {view.rank}"))]
    for label, text in facts:
        lines += hanging(_label(label), text or "unknown", width, TEXT if text else DIM)
    return lines


def nodes_text(shares: Iterable[NodeShare], noun: str) -> str:
    """Return such as ``34 threads on node 0, 2 on node 1``, most first."""
    parts: list[str] = []
    for share in sorted(shares, key=lambda each: -each.amount):
        if share.amount:
            named = plural(share.amount, noun) if not parts else f"{share.amount:,}"
            parts.append(f"{named} on node {share.node}")
    return ", ".join(parts)


def _label(words: str) -> StyledLine:
    return (dim(f"   {words:<12}"),)
