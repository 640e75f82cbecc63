"""Where the chosen rank runs and may run, what to type where it is far from its GPU, what is unknown."""

from __future__ import annotations

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import NUMA_MARKS
from overlaptop.tui.draw.segments import DIM, TEXT, Segment, StyledLine, TextStyle, dim, line_width
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
_UNITS = ("_bytes_per_s", "_bits_per_s", "_bytes", "_mw", "_hz", "_max")
_NAMES = {
    "nvlink": "NVLink", "pcie": "PCIe", "sm": "SM", "dram": "DRAM", "numa": "NUMA", "cpu": "CPU",
    "gpu": "GPU", "gpus": "GPUs", "nic": "NIC", "nics": "NICs", "pci": "PCI", "uuid": "UUID",
}  # fmt: skip


def verdict_lines(view: RankView, width: int) -> list[StyledLine]:
    """How the rank lies to its GPU, why, and what to type."""
    numa = view.numa
    if numa is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
        return [titled("NUMA"), *paragraph(text, width, DIM)]
    glyph, color = NUMA_MARKS[numa.state]
    verdict = (Segment(f"{glyph} {_STATES[numa.state]}", TextStyle(color, bold=True)),)
    lines: list[StyledLine] = [titled("NUMA", dim(f"rank {view.rank}  "), *verdict)]
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
        lines.append(titled("process", dim(f"of rank {view.rank}")))
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
    return [(dim("   to mend it"),), *(line for way in ways for line in paragraph(way, width, style, 5))]


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
    head = (dim(f"   {label:<{indent - 3}}"),)
    lines = paragraph(text, width, style, indent)
    if not lines:
        return [head]
    first = lines[0][1:]
    assert line_width(head) == indent
    return [(*head, *first), *lines[1:]]


def unknown_lines(view: RankView, width: int) -> list[StyledLine]:
    """One paragraph a reason, with all that it stands for. Of a GPU that is not there all is unknown, for
    the one reason that `no_gpu_lines` gives.
    """
    why_no_gpu = _why_no_gpu(view)
    by_reason: dict[str, list[str]] = {}
    for source in (view.sample, view.device, view.numa, view.machine):
        for unknown in source.unknown if source is not None else ():
            if unknown.reason == why_no_gpu:
                continue
            names = by_reason.setdefault(unknown.reason, [])
            if (name := _words(unknown.name)) not in names:
                names.append(name)
    lines: list[StyledLine] = []
    for reason, names in by_reason.items():
        lines += paragraph(f"{', '.join(names)}: {reason}", width, DIM)
    return [titled("unknown"), *lines] if lines else []


def no_gpu_lines(view: RankView, width: int) -> list[StyledLine]:
    """Of a rank without a GPU: why."""
    if view.device is None:
        text = f"unknown: rank {view.rank} has not reported it yet"
    else:
        text = f"none: {_why_no_gpu(view) or 'the rank computes on none that is known'}"
    return [titled("GPU"), *paragraph(text, width, DIM)]


def _why_no_gpu(view: RankView) -> str:
    if view.device is None or view.device.gpu_uuid:
        return ""
    return next((each.reason for each in view.device.unknown if each.name == "gpu_uuid"), "")


def _words(name: str) -> str:
    """A field's name as the screen calls it: ``nvlink_rx_bytes_per_s`` is NVLink rx."""
    for unit in _UNITS:
        name = name.removesuffix(unit)
    return " ".join(_NAMES.get(word, word) for word in name.split("_"))
