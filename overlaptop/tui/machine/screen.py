"""The selected rank's machine: GPUs, nodes, adapters, links, and their traffic."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.links import (
    NUMA_MARKS,
    has_nvlink,
    misplacement,
    nvlink_rate,
    pcie_is_turned_down,
    pcie_rate,
)
from overlaptop.text import UNKNOWN, byte_count, printable, watts, whole_percent
from overlaptop.tui.draw.bars import gauge
from overlaptop.tui.draw.layout import Item, fit
from overlaptop.tui.draw.segments import BOLD_WARNING, Segment, StyledLine, TextStyle, bold, dim, faded
from overlaptop.tui.draw.table import Cell, Column, Table
from overlaptop.tui.help.glossary import MACHINE
from overlaptop.tui.machine.detail import NVLINK, PCIE, MachineDetail, nodes_text
from overlaptop.tui.machine.host import Gpu, Machine, host_of, hosts, machine_of
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import MACHINE_KEYS, bindings
from overlaptop.tui.model.state import following
from overlaptop.tui.overview.columns import rate_cell
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import RowList

_GAUGE = 24
_COLUMNS: tuple[Column[Mapping[str, Cell]], ...] = (
    Column("GPU", 6, right=False),
    Column("rank", 9, right=False, grows=True),
    Column("CPUs", 17, right=False),
    Column("node", 4, right=False),
    Column("NUMA", 4, right=False),
    Column("of peak", _GAUGE, right=False, shown_from=124),
    Column("NVLink", 15),
    Column("PCIe", 17, shown_from=80),
    Column("SM", 5, shown_from=58),
    Column("memory", 9, shown_from=98),
    Column("power", 6, shown_from=98),
)


class GpuTable(RowList[Gpu]):
    """A heading, and a row for each GPU and each rank without one; the cursor is at the selected rank."""

    opens = "app.rank"

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return self.above + len(self.rows)

    @property
    def rows(self) -> tuple[Gpu, ...]:
        selected = self.state.selected
        return () if selected is None else machine_of(self.state.snapshot.ranks, host_of(selected)).rows

    def at(self, rows: Sequence[Gpu]) -> int:
        return next((at for at, gpu in enumerate(rows) if self.state.selected in gpu.ranks), 0)

    def put(self, row: Gpu) -> None:
        if row.ranks:
            self.state.rank = row.ranks[0].rank
            self.dashboard.watch()

    def draw(self, width: int, height: int) -> list[StyledLine]:
        selected, ranks = self.state.selected, self.state.snapshot.ranks
        if selected is None:
            return [(dim(" no rank to show"),)]
        machine = machine_of(ranks, host_of(selected))
        rows = [_cells(gpu, selected) for gpu in machine.rows]
        columns = [column for column in _COLUMNS if any(column.title in row for row in rows)]
        table = Table(columns, width, rows)

        def drawn(gpu: Gpu, at_cursor: bool) -> StyledLine:
            line = table.row(_cells(gpu, selected), cursor=at_cursor)
            is_old = all(view.stale or view.ended or view.node_lost for view in gpu.ranks)
            return faded(line) if is_old else line

        title = _title(machine, hosts(ranks), width)
        return [title, table.header(), *self.listed(machine.rows, height - self.above, drawn)]


def _cells(gpu: Gpu, selected: RankView) -> dict[str, Cell]:
    """Return the figures as the selected rank reports them, else as one that has measured them."""
    if not gpu.ranks:
        return {"GPU": dim(gpu.label), "rank": dim("unused")}
    ranks = f"rank{'s' * (len(gpu.ranks) > 1)} {' '.join(str(view.rank) for view in gpu.ranks)}"
    if len(ranks) > 14:
        ranks = f"{len(gpu.ranks)} ranks"
    measured = (view for view in gpu.ranks if view.samples)
    view = selected if selected in gpu.ranks else next(measured, gpu.ranks[0])
    if not gpu.uuid:
        return {
            "rank": bold(ranks),
            "CPUs": dim(nodes_text(view.numa.cpu_nodes, "CPU") if view.numa else ""),
        }
    nvlink, sample = has_nvlink(view), view.sample
    known, style = (nvlink_rate(view), NVLINK) if nvlink else (pcie_rate(view), PCIE)
    farthest = max(gpu.ranks, key=lambda each: misplacement(each) or 0).numa
    glyph, color = NUMA_MARKS[farthest.state if farthest is not None else "unknown"]
    warned = (Segment("! ", BOLD_WARNING),) if pcie_is_turned_down(view) else ()
    return {
        "GPU": bold(gpu.label),
        "rank": ranks,
        "node": UNKNOWN if gpu.node is None else str(gpu.node),
        "NUMA": Segment(glyph, TextStyle(color, bold=True)),
        "of peak": gauge(known.share, _GAUGE, style),
        **({"NVLink": rate_cell(nvlink_rate(view))} if nvlink else {}),
        "PCIe": (*warned, *rate_cell(pcie_rate(view))),
        "SM": whole_percent(sample.sm_activity if sample else None),
        "memory": byte_count(sample.memory_used_bytes if sample else None),
        "power": watts(sample.power_mw if sample else None),
    }


def _title(machine: Machine, known: list[str], width: int) -> StyledLine:
    left = [Item((bold(f" {printable(machine.host) or 'host not known'}"),))]
    if any(view.node_lost for view in machine.ranks):
        left.append(Item((Segment("○ out of reach", TextStyle("warning")),)))
    if machine.gpus:
        names = Counter(gpu.name for gpu in machine.gpus if gpu.name).most_common()
        text = " + ".join(f"{number} × {name}" for name, number in names) or f"{len(machine.gpus)} GPUs"
        left.append(Item((Segment(text),), 2))
    right = []
    if len(known) > 1 and machine.host in known:
        right.append(Item((dim(f"host {known.index(machine.host) + 1} of {len(known)} "),), 1))
    return fit(left, right, width)


class MachineScreen(DashboardScreen):
    """The GPUs of one host, and below them the selected rank's details."""

    title_in_help = MACHINE
    BINDINGS: ClassVar = bindings(MACHINE_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        self._detail = MachineDetail(dashboard)
        super().__init__(dashboard, JobHeader(dashboard), GpuTable(dashboard), self._detail)

    def action_move(self, rows: int) -> None:
        self.state.move(rows)
        self._select(self.state.rank)

    def action_next(self, direction: int) -> None:
        """Select the first rank of the next host, cyclically; with one host the next rank."""
        selected, rows = self.state.selected, self.state.rows
        if selected is None:
            return
        firsts = {host_of(view): view.rank for view in rows[::-1]}
        order = [firsts[host] for host in hosts(rows)]
        if len(order) > 1:
            self._select(following(firsts[host_of(selected)], order, direction))
        else:
            self._select(following(selected.rank, [view.rank for view in rows], direction))

    def action_scroll(self, lines: int) -> None:
        self._detail.move(lines)

    def _select(self, rank: int) -> None:
        self.state.rank = rank
        self._detail.first = 0
