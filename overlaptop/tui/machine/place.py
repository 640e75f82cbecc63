"""Where the chosen rank may run and does run, and what to type where that is not near its GPU."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import NUMA_MARKS
from overlaptop.tui.draw.segments import DIM, TEXT, Segment, StyledLine, TextStyle, line_width
from overlaptop.tui.machine.words import by_node, paragraph, titled
from overlaptop.wire.devices import NumaFacts

_LABEL = 10
_STATES = {
    "bound": "bound to its GPU's node",
    "unbound": "unbound",
    "wrong node": "on the wrong node",
    "one node": "one node",
    "no gpu": "no GPU",
    "unknown": "unknown",
}


def verdict_lines(view: RankView, width: int) -> list[StyledLine]:
    """How the rank lies to its GPU, why, and what to type."""
    numa = view.numa
    if numa is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
        return [titled("NUMA"), *paragraph(text, width, DIM)]
    glyph, color = NUMA_MARKS[numa.state]
    verdict = (Segment(f"{glyph} {_STATES[numa.state]}", TextStyle(color, bold=True)),)
    lines: list[StyledLine] = [titled("NUMA", Segment(f"rank {view.rank}  ", DIM), *verdict)]
    lines += paragraph(numa.reason, width, TEXT)
    if numa.advice:
        lines += _advice(numa.advice, width)
    if numa.bound:
        lines += _labelled("--numa bind", numa.bound, width, TEXT)
    return lines


def place_lines(view: RankView, width: int) -> list[StyledLine]:
    """What the verdict follows from."""
    lines: list[StyledLine] = []
    if view.numa is not None:
        lines.append(titled("process", Segment(f"of rank {view.rank}", DIM)))
        for label, text in _facts(view.numa):
            lines += _labelled(label, text or "unknown", width, TEXT if text else DIM)
    return lines


def _advice(advice: str, width: int) -> list[StyledLine]:
    """What to type; where that needs more than one line, each way to do it begins one below the label, so
    that no command is broken that need not be.
    """
    style = TextStyle("accent", bold=True)
    beside = _labelled("to mend it", advice, width, style)
    if len(beside) == 1:
        return beside
    first, *others = advice.split(", or ")
    ways = (first, *(f"or {other}" for other in others))
    return [
        (Segment("   to mend it", DIM),),
        *(line for way in ways for line in paragraph(way, width, style, 5)),
    ]


def _facts(numa: NumaFacts) -> list[tuple[str, str]]:
    cpus = ": ".join(filter(None, (by_node(numa.cpu_nodes, "CPU"), numa.cpu_set)))
    facts = [
        ("may use", cpus),
        ("threads", by_node(numa.threads_by_node, "thread")),
        ("memory", by_node(numa.memory_by_node)),
        ("policy", numa.memory_policy),
    ]
    if numa.nic or numa.gpu_node is not None:
        on = f" on node {numa.nic_node}" if numa.nic_node is not None else ", node unknown"
        facts.append(("nearest NIC", f"{numa.nic}{on}" if numa.nic else ""))
    if numa.gpu_memory_node is not None:
        facts.append(("GPU memory", f"is node {numa.gpu_memory_node}"))
    return facts


def _labelled(label: str, text: str, width: int, style: TextStyle) -> list[StyledLine]:
    """The words beside a label, and below them where they need more than one line."""
    indent = _LABEL + 5
    head = (Segment(f"   {label:<{indent - 3}}", DIM),)
    lines = paragraph(text, width, style, indent)
    if not lines:
        return [head]
    first = lines[0][1:]
    assert line_width(head) == indent
    return [(*head, *first), *lines[1:]]
