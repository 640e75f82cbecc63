"""The machine of the selected rank: its NUMA nodes, and on each the adapters, GPUs and their traffic."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from operator import attrgetter

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import (
    NUMA_MARKS,
    has_nvlink,
    misplacement,
    nvlink_of,
    nvlink_rate,
    pcie_is_turned_down,
    pcie_of,
    pcie_rate,
)
from overlaptop.text import bit_rate, byte_count, plural, printable, watts, whole_percent
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.bars import gauge, sparkline
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    FAINT,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    crop,
    dim,
    faded,
    fit,
    joined,
    on,
    pad,
)
from overlaptop.tui.draw.table import aligned, scrolled
from overlaptop.tui.machine.host import (
    Gpu,
    Machine,
    MachineNode,
    cpu_count,
    gpu_uuid,
    host_of,
    hosts,
    machine_of,
)
from overlaptop.tui.machine.link_history import MINUTE_S, column_s, columns
from overlaptop.tui.machine.meters import NVLINK, PCIE
from overlaptop.tui.machine.numa import on_node
from overlaptop.tui.machine.peers import fabric
from overlaptop.tui.overview.columns import rate_cell
from overlaptop.tui.view import JobView

_FACTS = attrgetter("rank", "machine", "device", "numa", "sample", "stale", "ended", "node_lost")
"""All of a rank that the map shows."""
_SPARK_LEAST, _GAUGE_LEAST, _GAUGE_MOST = 10, 10, 40
SIDE_BY_SIDE_FROM = 140
"""Cells from which two nodes stand beside each other."""
ROOMY_FROM, ROOMY_STACKED_FROM, DENSE_BELOW = 36, 48, 24
"""Lines of the screen from which nodes have boxes, also where they stand below one another, and below which
only their GPUs are shown."""


class Panel:
    """One node: a heading with its CPUs and memory, its adapters, and a row each for its GPUs or ranks."""

    def __init__(
        self,
        machine: Machine,
        node: MachineNode,
        selected: RankView,
        width: int,
        *,
        boxed: bool,
        dense: bool,
        titled: bool,
        textured: bool,
    ) -> None:
        self.node, self.width, self.boxed = node, width, boxed
        self.room = width - (4 if boxed else 1)
        self.textured = textured
        self.nvlink = any(has_nvlink(view) for view in machine.ranks)
        self.inside: list[StyledLine] = []
        self.selected_at: int | None = None
        self._cells = self._sizes(1 + max((len(_rank_words(gpu)) for gpu in machine.gpus), default=0))
        if node.nics and not dense:
            self.inside.append(_nics(node, selected))
        if node.gpus and titled:
            self._add(self._titles(), cursor=False)
        for gpu in node.gpus:
            self._add(
                self._gpu(gpu, selected), cursor=any(view.rank == selected.rank for view in gpu.ranks)
            )
        for view in node.ranks:
            parts = "".join(f"{part:<14}" for part in on_node(view.numa, node.number)) if view.numa else ""
            self._add((bold(f"rank {view.rank:<6}"), Segment(parts)), cursor=view.rank == selected.rank)
        if boxed and gpu_uuid(selected) and (present := _presence(selected, node)):
            self.inside.append(present)

    def lines(self, height: int) -> list[StyledLine]:
        """The whole panel, ``height`` lines without its border."""
        inside = [*self.inside, *[()] * (height - len(self.inside))]
        body = [pad(_clean(line), self.room) for line in inside]
        rule = Segment(" " + "─" * self.width, FAINT)
        heading = _clean(_heading(self.node))
        if not self.boxed:
            top = crop((Segment("─ ", FAINT), *heading, rule), self.width)
            return [top, *((Segment(" "), *line) for line in body)]
        top = crop((Segment("╭ ", FAINT), *heading, rule), self.width - 1)
        left, right = Segment("│ ", FAINT), Segment(" │", FAINT)
        foot = Segment("╰" + "─" * (self.width - 2) + "╯", FAINT)
        return [(*top, Segment("╮", FAINT)), *((left, *line, right) for line in body), (foot,)]

    def _add(self, line: StyledLine, *, cursor: bool) -> None:
        if cursor:
            self.selected_at = len(self.inside)
        mark = Segment("▸ " if cursor else "  ", TextStyle("accent", bold=True))
        line = pad((mark, *line), self.room)
        self.inside.append(on(line, "cursor") if cursor else line)

    def _sizes(self, rank_cells: int) -> dict[str, int]:
        """Cells of each column in order; what is left over goes to the history, and then to a bar."""
        room = self.room - 2
        sizes = {"gpu": 7, "rank": rank_cells, "mark": 6, "spark": 0, "bar": 0, "rate": 15}
        # Where there is no NVLink, PCIe stands in its place.
        wanted = (
            ("pcie", 17, 70 if self.nvlink else 1000),
            ("sm", 6, 52),
            ("memory", 10, 104),
            ("power", 7, 104),
        )
        sizes |= {name: size for name, size, least in wanted if room >= least}
        spare = room - sum(sizes.values()) - 1
        most = spare - _GAUGE_LEAST - 1
        most = most if most >= _SPARK_LEAST else spare
        if most >= _SPARK_LEAST:
            sizes["spark"] = MINUTE_S // column_s(most)
            spare -= sizes["spark"] + 1
        sizes["bar"] = min(spare, _GAUGE_MOST) if spare >= _GAUGE_LEAST else 0
        return sizes

    def _titles(self) -> StyledLine:
        spark, bar = self._cells["spark"], self._cells["bar"]
        name = "NVLink" if self.nvlink else "PCIe"
        words = {
            "gpu": "GPU", "rank": "rank", "mark": "NUMA",
            "spark": f"{name}, one minute" if spark >= 18 else name,
            "bar": "now" if spark else name,
            "rate": "" if spark or bar else name,
            "pcie": "PCIe", "sm": "SM", "memory": "memory", "power": "power",
        }  # fmt: skip
        return self._row({key: (dim(text),) for key, text in words.items()})

    def _row(self, cells: dict[str, StyledLine]) -> StyledLine:
        line: list[Segment] = []
        for key, size in self._cells.items():
            if size:
                drawn = key in ("spark", "bar")
                line += aligned(cells[key], size, right=not drawn and key not in ("gpu", "rank", "mark"))
                line += [Segment(" ")] if drawn else []
        return tuple(line)

    def _gpu(self, gpu: Gpu, selected: RankView) -> StyledLine:
        view = gpu.reporting_rank(selected)
        if view is None:
            return (Segment(f"{gpu.label:<7}", FAINT), Segment("not used by the job", FAINT))
        known, of, style = (
            (nvlink_rate(view), nvlink_of, NVLINK) if self.nvlink else (pcie_rate(view), pcie_of, PCIE)
        )
        sample, spark = view.sample, self._cells["spark"]
        farthest = max(gpu.ranks, key=lambda each: misplacement(each) or 0).numa
        glyph, color = NUMA_MARKS[farthest.state if farthest is not None else "unknown"]
        history = columns(view.samples, spark, of)
        warned = (Segment(" !", TextStyle("warning", bold=True)),) if pcie_is_turned_down(view) else ()
        cells: dict[str, StyledLine] = {
            "gpu": (bold(gpu.label),),
            "rank": (Segment(_rank_words(gpu)),),
            "mark": (Segment(glyph, TextStyle(color, bold=True)),),
            "spark": sparkline(history, known.peak_bytes_per_s or 0, style=style),
            "bar": gauge(known.share, self._cells["bar"], style, textured=self.textured),
            "rate": rate_cell(known),
            "pcie": (*warned, *rate_cell(pcie_rate(view))),
            "sm": (Segment(whole_percent(sample.sm_activity if sample else None)),),
            "memory": (Segment(byte_count(sample.memory_used_bytes if sample else None)),),
            "power": (Segment(watts(sample.power_mw if sample else None)),),
        }
        line = self._row(cells)
        return faded(line) if view.stale or view.ended or view.node_lost else line


def _clean(line: StyledLine) -> StyledLine:
    return tuple(Segment(printable(text), style) for text, style in line)


def _rank_words(gpu: Gpu) -> str:
    numbers = [str(view.rank) for view in gpu.ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    text = "ranks " + " ".join(numbers)
    return text if len(text) <= 10 else f"{len(numbers)} ranks"


def _heading(node: MachineNode) -> StyledLine:
    facts = node.facts
    if facts is None:
        if node.number is None:
            return (bold("node not known"),)
        return (bold(f"node {node.number}"), dim("  of which nothing is known"))
    number = cpu_count(facts.cpus)
    cpus = (Segment(f"  CPUs {facts.cpus}"), dim(f" ({number})" if number is not None else ""))
    known_memory = facts.memory_bytes is not None
    memory = f"  memory {byte_count(facts.memory_bytes) if known_memory else 'unknown'}"
    return (
        bold(f"node {node.number}"),
        *(cpus if facts.cpus else (dim("  no CPUs"),)),
        Segment(memory, TEXT if known_memory else DIM),
    )


def _nics(node: MachineNode, selected: RankView) -> StyledLine:
    """Adapters of one speed together, the selected rank's nearest in bright."""
    line: list[Segment] = [dim("NIC  ")]
    nearest = selected.numa.nic if selected.numa is not None else ""
    ordered = sorted(node.nics, key=lambda nic: (-(nic.bits_per_s or 0), nic.name))
    for speed, group in groupby(ordered, key=lambda nic: nic.bits_per_s):
        for nic in group:
            line += [Segment(nic.name, BOLD if nic.name == nearest else TEXT), Segment(" ")]
        line.append(dim(f"{bit_rate(speed)}   " if speed is not None else "speed unknown   "))
    return tuple(line)


def _presence(selected: RankView, node: MachineNode) -> StyledLine:
    """What of the selected rank is on this node."""
    numa = selected.numa
    if numa is None or node.number is None:
        return ()
    astray = numa.state == "wrong node" and node.number != numa.gpu_node
    text = " · ".join(on_node(numa, node.number))
    if not text:
        return (Segment(f"nothing of rank {selected.rank} is here", FAINT),)
    return (dim(f"rank {selected.rank} here: "), Segment(text, TextStyle("warning") if astray else TEXT))


class MachineMap(JobView):
    """A heading and a panel a node; keeps the selected rank visible where not all lines have room."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._first = 0
        self._screen_height = 0
        self._drawn: tuple[tuple[object, ...], list[StyledLine], int] | None = None

    def made_of(self) -> tuple[object, ...]:
        selected, views = self.state.selected, self.state.snapshot.ranks
        host = host_of(selected) if selected is not None else ""
        facts = tuple(_FACTS(each) for each in views if host_of(each) == host)
        return (host, selected.rank if selected is not None else None, len(hosts(views)), facts)

    def full_height(self, width: int, screen_height: int) -> int:
        """Lines beyond which nothing more is drawn, on a screen of that size."""
        self._screen_height = screen_height
        return 1 + len(self._all(width)[0])

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lines, at = self._all(width)
        room = max(0, height - 1)
        self._first = scrolled(self._first, at, len(lines), room)
        below = len(lines) - room - self._first
        more = " ".join(mark for mark, there in (("▲", self._first), ("▼", below)) if there > 0)
        selected = self.state.selected
        if selected is None:
            return [(dim(" no rank to show"),)]
        known = hosts(self.state.snapshot.ranks)
        title = _title(machine_of(self.state.snapshot.ranks, host_of(selected)), known, more, width)
        return [title, *lines[self._first : self._first + room]]

    def _all(self, width: int) -> tuple[list[StyledLine], int]:
        """Every line below the heading, and which of them the selected rank is on."""
        made_of = (*self.made_of(), width, self._screen_height, self.look.textured)
        if self._drawn is None or self._drawn[0] != made_of:
            self._drawn = (made_of, *self._whole(width))
        return self._drawn[1], self._drawn[2]

    def _whole(self, width: int) -> tuple[list[StyledLine], int]:
        selected, ranks = self.state.selected, self.state.snapshot.ranks
        if selected is None:
            return [], 0
        machine = machine_of(ranks, host_of(selected))
        lines: list[StyledLine] = []
        at = 0
        nodes = [node for node in machine.nodes if not node.bare]
        beside = 2 if width >= SIDE_BY_SIDE_FROM and len(nodes) > 1 else 1
        roomy = self._screen_height >= (ROOMY_FROM if len(nodes) <= beside else ROOMY_STACKED_FROM)
        dense = self._screen_height < DENSE_BELOW
        size = (width - 2 - 2 * (beside - 1)) // beside
        panels = [
            Panel(
                machine, node, selected, size, boxed=roomy, dense=dense,
                titled=number < beside or roomy, textured=self.look.textured,
            )
            for number, node in enumerate(nodes)
        ]  # fmt: skip
        for first in range(0, len(panels), beside):
            row = panels[first : first + beside]
            tallest = max(len(panel.inside) for panel in row)
            for panel in row:
                if panel.selected_at is not None:
                    at = len(lines) + 1 + panel.selected_at
            drawn = [panel.lines(tallest) for panel in row]
            lines += [(Segment(" "), *joined(each, "  ")) for each in zip(*drawn, strict=True)]
        bare = [node for node in machine.nodes if node.bare]
        lines += [_bare(node, width) for node in bare]
        if not dense and (text := fabric(machine)):
            lines.append(_rail(text, width))
        return lines, at


def _bare(node: MachineNode, width: int) -> StyledLine:
    assert node.facts is not None
    whose = "a GPU's memory" if node.facts.is_gpu_memory else "memory only"
    text = f"{whose}, {byte_count(node.facts.memory_bytes)}, no CPUs"
    return crop((dim("   node "), bold(str(node.number)), dim(f"  {text}")), width)


def _title(machine: Machine, known: list[str], more: str, width: int) -> StyledLine:
    used = sum(bool(gpu.ranks) for gpu in machine.gpus)
    nodes = [node for node in machine.nodes if node.number is not None]
    nics = sum(len(node.nics) for node in machine.nodes)
    left = [Item((bold(f" {printable(machine.host) or 'host not known'}"),))]
    if machine.own_name:
        left.append(Item((dim(printable(machine.own_name)),), 6))
    if any(view.node_lost for view in machine.ranks):
        left.append(Item((Segment("○ out of reach", TextStyle("warning")),)))
    if machine.gpus:
        names = Counter(gpu.name for gpu in machine.gpus if gpu.name).most_common()
        text = " + ".join(f"{number} × {name}" for name, number in names) or f"{len(machine.gpus)} GPUs"
        left.append(Item((Segment(text),), 2))
        if used < len(machine.gpus):
            left.append(Item((dim(f"{used} used by the job"),), 3))
    if nodes:
        left.append(Item((dim(plural(len(nodes), "NUMA node")),), 4))
    if nics:
        left.append(Item((dim(plural(nics, "NIC")),), 5))
    right = [Item((dim(f"{more} more "),))] if more else []
    if len(known) > 1 and machine.host in known:
        right = [*right, Item((dim(f"host {known.index(machine.host) + 1} of {len(known)} "),), 1)]
    return fit(left, right, width)


def _rail(text: str, width: int) -> StyledLine:
    style, rest = TextStyle("history"), max(0, width - len(text) - 8)
    return crop((Segment(" ═══ ", style), Segment(text), Segment(" " + "═" * rest, style)), width - 1)
