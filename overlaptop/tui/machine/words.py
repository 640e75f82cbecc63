"""Quantities of machines as text, and what is on a node in words."""

from __future__ import annotations

from collections.abc import Iterable

from overlaptop.text import UNKNOWN, byte_count, count
from overlaptop.tui.draw.segments import TEXT, Item, Segment, StyledLine, TextStyle, wrap
from overlaptop.wire.devices import NodeShare, NumaFacts


def watts(milliwatts: int | None) -> str:
    """``620 W``."""
    return UNKNOWN if milliwatts is None else f"{milliwatts / 1000:.0f} W"


def plural(number: int, noun: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{count(number)} {noun}{'s' * (number != 1)}"


def paragraph(text: str, width: int, style: TextStyle = TEXT, indent: int = 3) -> list[StyledLine]:
    """Words over as many lines as they need."""
    words = [Item((Segment(word, style),)) for word in text.split()]
    lines = wrap(words, max(8, width - indent - 1), len(words) or 1, " ")
    return [(Segment(" " * indent, style), *line) for line in lines] if words else []


def titled(title: str, *more: Segment) -> StyledLine:
    """A part's heading."""
    return (Segment(f" {title}", TextStyle("text", bold=True)), *((Segment("   "), *more) if more else ()))


def here(numa: NumaFacts, node: int | None) -> list[str]:
    """How much of a process is on a node: CPUs it may use, threads, memory. Less what is nothing."""
    cpus, threads, memory = (
        sum(share.amount for share in shares if share.node == node)
        for shares in (numa.cpu_nodes, numa.threads_by_node, numa.memory_by_node)
    )
    parts = []
    if cpus:
        parts.append(plural(cpus, "CPU"))
    if threads:
        parts.append(plural(threads, "thread"))
    if memory:
        parts.append(byte_count(memory))
    return parts


def by_node(shares: Iterable[NodeShare], noun: str = "") -> str:
    """``34 threads on node 0, 2 on node 1``; without a noun, bytes. Most first."""
    parts: list[str] = []
    for share in sorted(shares, key=lambda each: -each.amount):
        if share.amount:
            figure = byte_count(share.amount) if not noun else count(share.amount)
            first = f" {noun}{'s' * (share.amount != 1)}" if noun and not parts else ""
            parts.append(f"{figure}{first} on node {share.node}")
    return ", ".join(parts)
