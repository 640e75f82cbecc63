"""The machine of the chosen rank: its NUMA nodes, and on each the adapters, the GPUs and their traffic."""

from __future__ import annotations

from collections import Counter

from overlaptop.text import byte_count, printable
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    crop,
    fit,
    joined,
)
from overlaptop.tui.machine.host import Machine, MachineNode, host_of, hosts, machine_of
from overlaptop.tui.machine.panel import Panel
from overlaptop.tui.machine.peers import fabric
from overlaptop.tui.machine.words import plural
from overlaptop.tui.view import JobView

SIDE_BY_SIDE_FROM = 140
"""Cells from which two nodes stand beside each other."""
ROOMY_FROM, ROOMY_STACKED_FROM, DENSE_BELOW = 36, 48, 24
"""Lines of the screen from which nodes have boxes, also where they stand below one another, and below which
only their GPUs are shown."""


class MachineMap(JobView):
    """A heading and a panel a node; keeps the chosen rank in sight where there are more lines than room."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._first = 0
        self._screen_height = 0
        self._drawn: tuple[tuple[object, ...], list[StyledLine], int] | None = None

    def made_of(self) -> tuple[object, ...]:
        """What this host's ranks have said, and which is chosen."""
        chosen, views = self.state.chosen, self.state.snapshot.ranks
        host = host_of(chosen) if chosen is not None else ""
        facts = tuple(
            (
                view.rank,
                view.machine,
                view.device,
                view.numa,
                view.sample,
                view.stale,
                view.ended,
                view.node_lost,
            )
            for view in views
            if host_of(view) == host
        )
        return (host, chosen.rank if chosen is not None else None, len(hosts(views)), facts)

    def full_height(self, width: int, screen_height: int) -> int:
        """Lines beyond which nothing more is drawn, on a screen of that size."""
        self._screen_height = screen_height
        return 1 + len(self._all(width)[0])

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """The heading and the lines in sight below it."""
        lines, at = self._all(width)
        room = max(0, height - 1)
        self._first = max(0, min(max(at - room + 1, min(self._first, at)), len(lines) - room))
        below = len(lines) - room - self._first
        more = " ".join(mark for mark, there in (("▲", self._first), ("▼", below)) if there > 0)
        chosen = self.state.chosen
        if chosen is None:
            return [(Segment(" no rank to show", DIM),)]
        known = hosts(self.state.snapshot.ranks)
        title = _title(machine_of(self.state.snapshot.ranks, host_of(chosen)), known, more, width)
        return [title, *lines[self._first : self._first + room]]

    def _all(self, width: int) -> tuple[list[StyledLine], int]:
        """Every line below the heading, and which of them the chosen rank is on."""
        made_of = (*self.made_of(), width, self._screen_height, self.look.textured)
        if self._drawn is None or self._drawn[0] != made_of:
            self._drawn = (made_of, *self._whole(width))
        return self._drawn[1], self._drawn[2]

    def _whole(self, width: int) -> tuple[list[StyledLine], int]:
        chosen, ranks = self.state.chosen, self.state.snapshot.ranks
        if chosen is None:
            return [], 0
        machine = machine_of(ranks, host_of(chosen))
        lines: list[StyledLine] = []
        at = 0
        nodes = [node for node in machine.nodes if not node.bare]
        beside = 2 if width >= SIDE_BY_SIDE_FROM and len(nodes) > 1 else 1
        roomy = self._screen_height >= (ROOMY_FROM if len(nodes) <= beside else ROOMY_STACKED_FROM)
        dense = self._screen_height < DENSE_BELOW
        size = (width - 2 - 2 * (beside - 1)) // beside
        panels = [
            Panel(
                machine, node, chosen, size, boxed=roomy, dense=dense,
                titled=number < beside or roomy, textured=self.look.textured,
            )
            for number, node in enumerate(nodes)
        ]  # fmt: skip
        for first in range(0, len(panels), beside):
            row = panels[first : first + beside]
            tallest = max(len(panel.inside) for panel in row)
            for panel in row:
                if panel.chosen_at is not None:
                    at = len(lines) + 1 + panel.chosen_at
            drawn = [panel.lines(tallest) for panel in row]
            lines += [(Segment(" "), *joined(each, "  ")) for each in zip(*drawn, strict=True)]
        bare = [node for node in machine.nodes if node.bare]
        lines += [_bare(node, width) for node in bare]
        if not dense and (text := fabric(machine)):
            lines.append(_rail(text, width))
        return lines, at


def _bare(node: MachineNode, width: int) -> StyledLine:
    """A node of memory only."""
    assert node.facts is not None
    whose = "a GPU's memory" if node.facts.is_gpu_memory else "memory only"
    text = f"{whose}, {byte_count(node.facts.memory_bytes)}, no CPUs"
    return crop(
        (Segment("   node ", DIM), Segment(str(node.number), BOLD), Segment(f"  {text}", DIM)), width
    )


def _title(machine: Machine, known: list[str], more: str, width: int) -> StyledLine:
    used = sum(bool(gpu.ranks) for gpu in machine.gpus)
    nodes = [node for node in machine.nodes if node.number is not None]
    nics = sum(len(node.nics) for node in machine.nodes)
    left = [Item((Segment(f" {printable(machine.host) or 'host not known'}", BOLD),))]
    if machine.own_name:
        left.append(Item((Segment(printable(machine.own_name), DIM),), 6))
    if any(view.node_lost for view in machine.ranks):
        left.append(Item((Segment("○ out of reach", TextStyle("warning")),)))
    if machine.gpus:
        names = Counter(gpu.name for gpu in machine.gpus if gpu.name).most_common()
        text = " + ".join(f"{number} × {name}" for name, number in names) or f"{len(machine.gpus)} GPUs"
        left.append(Item((Segment(text),), 2))
        if used < len(machine.gpus):
            left.append(Item((Segment(f"{used} used by the job", DIM),), 3))
    if nodes:
        left.append(Item((Segment(plural(len(nodes), "NUMA node"), DIM),), 4))
    if nics:
        left.append(Item((Segment(plural(nics, "NIC"), DIM),), 5))
    right = [Item((Segment(f"{more} more ", DIM),))] if more else []
    if len(known) > 1 and machine.host in known:
        right = [*right, Item((Segment(f"host {known.index(machine.host) + 1} of {len(known)} ", DIM),), 1)]
    return fit(left, right, width)


def _rail(text: str, width: int) -> StyledLine:
    """A line that all nodes stand on."""
    rest = max(0, width - len(text) - 8)
    return crop(
        (
            Segment(" ═══ ", TextStyle("history")),
            Segment(text, TEXT),
            Segment(" " + "═" * rest, TextStyle("history")),
        ),
        width - 1,
    )
