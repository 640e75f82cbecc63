"""The host of the selected rank: a row for each GPU, or rank without one, and its NUMA nodes."""

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
from overlaptop.text import UNKNOWN, bit_rate, byte_count, plural, printable, watts, whole_percent
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
    on,
    pad,
)
from overlaptop.tui.draw.table import aligned, scrolled
from overlaptop.tui.machine.host import (
    Gpu,
    Machine,
    MachineNode,
    cpu_count,
    host_of,
    hosts,
    machine_of,
)
from overlaptop.tui.machine.link_history import MINUTE_S, column_s, columns
from overlaptop.tui.machine.meters import NVLINK, PCIE
from overlaptop.tui.machine.numa import on_node
from overlaptop.tui.machine.peers import fabric
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.overview.columns import rate_cell
from overlaptop.tui.widgets.view import JobView

_FACTS = attrgetter("rank", "machine", "device", "numa", "sample", "stale", "ended", "node_lost")
"""All of a rank that is shown here."""
_SPARK_LEAST, _GAUGE_LEAST, _GAUGE_MOST = 10, 10, 40
_LEFT_ALIGNED = ("gpu", "rank", "node", "mark")
DENSE_BELOW = 24
"""Lines of the screen below which nodes and how GPUs are linked are left out."""


class GpuTable(JobView):
    """A heading, a row a GPU, and what is known of the nodes; keeps the selected rank in sight."""

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

    def full_height(self, width: int) -> int:
        self._screen_height = self.app.size.height
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
        rows = _Rows(machine, selected, width, textured=self.look.textured)
        lines = rows.lines()
        if self._screen_height >= DENSE_BELOW:
            lines += [crop((Segment(" "), *_node(node, selected)), width) for node in machine.nodes]
            if text := fabric(machine):
                lines.append(crop((Segment(f" {text}"),), width))
        return lines, rows.selected_at


class _Rows:
    """A row for each GPU, and for each rank without one."""

    def __init__(self, machine: Machine, selected: RankView, width: int, *, textured: bool) -> None:
        self.selected_at = 0
        """The line of the selected rank."""
        self._machine, self._selected, self._width = machine, selected, width
        self._textured = textured
        self._nvlink = any(has_nvlink(view) for view in machine.ranks)
        self._cells = self._sizes(2 + max((len(_rank_words(gpu)) for gpu in machine.gpus), default=0))

    def lines(self) -> list[StyledLine]:
        """All of them, titles first."""
        lines: list[StyledLine] = []

        def add(line: StyledLine, *ranks: RankView) -> None:
            chosen = any(view.rank == self._selected.rank for view in ranks)
            if chosen:
                self.selected_at = len(lines)
            mark = Segment(" ▸ " if chosen else "   ", TextStyle("accent", bold=True))
            whole = pad(
                tuple(Segment(printable(text), style) for text, style in (mark, *line)), self._width
            )
            lines.append(on(whole, "cursor") if chosen else whole)

        if self._machine.gpus:
            add(self._titles())
        for gpu in self._machine.gpus:
            add(self._gpu(gpu), *gpu.ranks)
        for node in self._machine.nodes:
            for view in node.ranks:
                has = on_node(view.numa, node.number) if view.numa else []
                parts = "".join(f"{part:<14}" for part in (*has, f"node {_number(node.number)}"))
                add((bold(f"rank {view.rank:<6}"), Segment(parts)), view)
        return lines

    def _sizes(self, rank_cells: int) -> dict[str, int]:
        """Cells of each column in order; what is left over goes to the history, and then to a bar."""
        room = self._width - 4
        sizes = {"gpu": 7, "rank": rank_cells, "node": 6, "mark": 6, "spark": 0, "bar": 0, "rate": 15}
        # Where there is no NVLink, PCIe stands in its place.
        wanted = (
            ("pcie", 17, 76 if self._nvlink else 1000),
            ("sm", 6, 58),
            ("memory", 10, 110),
            ("power", 7, 110),
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
        name = "NVLink" if self._nvlink else "PCIe"
        words = {
            "gpu": "GPU", "rank": "rank", "node": "node", "mark": "NUMA",
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
                line += aligned(cells[key], size, right=not drawn and key not in _LEFT_ALIGNED)
                line += [Segment(" ")] if drawn else []
        return tuple(line)

    def _gpu(self, gpu: Gpu) -> StyledLine:
        view = gpu.reporting_rank(self._selected)
        if view is None:
            return (Segment(f"{gpu.label:<7}", FAINT), Segment("not used by the job", FAINT))
        known, of, style = (
            (nvlink_rate(view), nvlink_of, NVLINK) if self._nvlink else (pcie_rate(view), pcie_of, PCIE)
        )
        sample, spark = view.sample, self._cells["spark"]
        farthest = max(gpu.ranks, key=lambda each: misplacement(each) or 0).numa
        glyph, color = NUMA_MARKS[farthest.state if farthest is not None else "unknown"]
        history = columns(view.samples, spark, of)
        warned = (Segment(" !", TextStyle("warning", bold=True)),) if pcie_is_turned_down(view) else ()
        cells: dict[str, StyledLine] = {
            "gpu": (bold(gpu.label),),
            "rank": (Segment(_rank_words(gpu)),),
            "node": (Segment(_number(gpu.node)),),
            "mark": (Segment(glyph, TextStyle(color, bold=True)),),
            "spark": sparkline(history, known.peak_bytes_per_s or 0, style=style),
            "bar": gauge(known.share, self._cells["bar"], style, textured=self._textured),
            "rate": rate_cell(known),
            "pcie": (*warned, *rate_cell(pcie_rate(view))),
            "sm": (Segment(whole_percent(sample.sm_activity if sample else None)),),
            "memory": (Segment(byte_count(sample.memory_used_bytes if sample else None)),),
            "power": (Segment(watts(sample.power_mw if sample else None)),),
        }
        line = self._row(cells)
        return faded(line) if view.stale or view.ended or view.node_lost else line


def _number(node: int | None) -> str:
    return UNKNOWN if node is None else str(node)


def _rank_words(gpu: Gpu) -> str:
    numbers = [str(view.rank) for view in gpu.ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    text = "ranks " + " ".join(numbers)
    return text if len(text) <= 10 else f"{len(numbers)} ranks"


def _node(node: MachineNode, selected: RankView) -> StyledLine:
    """A node's CPUs and memory, and its adapters."""
    facts, nics = node.facts, _nics(node, selected)
    if facts is None:
        name = "node not known" if node.number is None else f"node {node.number}"
        return (bold(name), *nics) if nics else (bold(name), dim("  nothing is known of it"))
    if node.bare:
        whose = "a GPU's memory" if facts.is_gpu_memory else "memory only"
        return (bold(f"node {node.number}"), dim(f"  {whose}, {byte_count(facts.memory_bytes)}, no CPUs"))
    count = cpu_count(facts.cpus)
    cpus = f"  CPUs {printable(facts.cpus)}" + (f" ({count})" if count is not None else "")
    known = facts.memory_bytes is not None
    memory = f"  memory {byte_count(facts.memory_bytes) if known else 'unknown'}"
    return (
        bold(f"node {node.number}"),
        Segment(cpus) if facts.cpus else dim("  no CPUs"),
        Segment(memory, TEXT if known else DIM),
        *nics,
    )


def _nics(node: MachineNode, selected: RankView) -> StyledLine:
    """Adapters of one speed together, the selected rank's nearest in bright."""
    line: list[Segment] = [dim("  NIC ")] if node.nics else []
    nearest = selected.numa.nic if selected.numa is not None else ""
    ordered = sorted(node.nics, key=lambda nic: (-(nic.bits_per_s or 0), nic.name))
    for speed, group in groupby(ordered, key=lambda nic: nic.bits_per_s):
        for nic in group:
            line += [Segment(printable(nic.name), BOLD if nic.name == nearest else TEXT), Segment(" ")]
        line.append(dim(f"{bit_rate(speed)}  " if speed is not None else "speed unknown  "))
    return tuple(line)


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
