"""The selected rank's host: a row for each GPU and each rank without one."""

from collections import Counter
from operator import attrgetter

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
from overlaptop.tui.draw.segments import (
    BOLD_WARNING,
    FAINT,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    faded,
)
from overlaptop.tui.draw.table import Column, Table, scrolled
from overlaptop.tui.machine.host import Gpu, Machine, host_of, hosts, machine_of
from overlaptop.tui.machine.meters import NVLINK, PCIE
from overlaptop.tui.machine.numa import nodes_text
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.overview.columns import rate_cell
from overlaptop.tui.widgets.view import JobView

_FACTS = attrgetter("rank", "machine", "device", "numa", "sample", "stale", "ended", "node_lost")
"""All fields of a rank that are shown here."""
_GAUGE = 24
_COLUMNS = (
    Column("GPU", 6, right=False),
    Column("rank", 9, right=False),
    Column("node", 4, right=False),
    Column("NUMA", 4, right=False),
    Column("of peak", _GAUGE, right=False, shown_from=124),
    Column("NVLink", 15),
    Column("PCIe", 17, shown_from=80),
    Column("SM", 5, shown_from=58),
    Column("memory", 9, shown_from=98),
    Column("power", 6, shown_from=98),
)
_CPU_COLUMNS = (_COLUMNS[1], Column("CPUs", 17, right=False))
"""Used if the host has no GPU."""


class GpuTable(JobView):
    """A heading and a row per GPU; keeps the selected rank visible."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._first = 0

    def made_of(self) -> tuple[object, ...]:
        selected, views = self.state.selected, self.state.snapshot.ranks
        host = host_of(selected) if selected is not None else ""
        facts = tuple(_FACTS(each) for each in views if host_of(each) == host)
        return (host, selected.rank if selected is not None else None, len(hosts(views)), facts)

    def full_height(self, width: int) -> int:  # noqa: ARG002
        selected, ranks = self.state.selected, self.state.snapshot.ranks
        return 2 + len(_rows(machine_of(ranks, host_of(selected)))) if selected is not None else 1

    def draw(self, width: int, height: int) -> list[StyledLine]:
        selected, ranks = self.state.selected, self.state.snapshot.ranks
        if selected is None:
            return [(dim(" no rank to show"),)]
        machine, known = machine_of(ranks, host_of(selected)), hosts(ranks)
        nvlink = any(map(has_nvlink, machine.ranks))
        columns = [each for each in _COLUMNS if nvlink or each.title != "NVLink"]
        if not nvlink:
            columns = [each._replace(shown_from=0) if each.title == "PCIe" else each for each in columns]
        if not machine.gpus:
            columns = list(_CPU_COLUMNS)
        rows = _rows(machine)
        table = Table(columns, width, {"rank": [_ranks_text(each) for each in rows]})
        chosen = [at for at, each in enumerate(rows) if selected in _ranks_of(each)]
        space = max(0, height - 2)
        self._first = scrolled(self._first, chosen[0] if chosen else 0, len(rows), space)
        more = len(rows) - self._first - space
        lines = [_title(machine, known, more, width), table.header()]
        for each in rows[self._first : self._first + space]:
            cells = self._gpu(each, selected, nvlink) if isinstance(each, Gpu) else _without_gpu(each)
            line = table.row(
                [cells.get(column.title, ()) for column in columns], cursor=selected in _ranks_of(each)
            )
            is_old = all(view.stale or view.ended or view.node_lost for view in _ranks_of(each))
            lines.append(faded(line) if is_old else line)
        return lines

    def _gpu(self, gpu: Gpu, selected: RankView, nvlink: bool) -> dict[str, StyledLine]:
        view = gpu.reporting_rank(selected)
        if view is None:
            return {"GPU": (Segment(gpu.label, FAINT),), "rank": (Segment("unused", FAINT),)}
        known, style = (nvlink_rate(view), NVLINK) if nvlink else (pcie_rate(view), PCIE)
        sample = view.sample
        farthest = max(gpu.ranks, key=lambda each: misplacement(each) or 0).numa
        glyph, color = NUMA_MARKS[farthest.state if farthest is not None else "unknown"]
        warned = (Segment("! ", BOLD_WARNING),) if pcie_is_turned_down(view) else ()
        return {
            "GPU": (bold(gpu.label),),
            "rank": (Segment(_ranks_text(gpu)),),
            "node": (Segment(UNKNOWN if gpu.node is None else str(gpu.node)),),
            "NUMA": (Segment(glyph, TextStyle(color, bold=True)),),
            "of peak": gauge(known.share, _GAUGE, style, textured=self.look.textured),
            "NVLink": rate_cell(nvlink_rate(view)),
            "PCIe": (*warned, *rate_cell(pcie_rate(view))),
            "SM": (Segment(whole_percent(sample.sm_activity if sample else None)),),
            "memory": (Segment(byte_count(sample.memory_used_bytes if sample else None)),),
            "power": (Segment(watts(sample.power_mw if sample else None)),),
        }


def _rows(machine: Machine) -> list[Gpu | RankView]:
    return [*machine.gpus, *(view for view in machine.ranks if not view.gpu_uuid)]


def _ranks_of(row: Gpu | RankView) -> tuple[RankView, ...]:
    return row.ranks if isinstance(row, Gpu) else (row,)


def _ranks_text(row: Gpu | RankView) -> str:
    numbers = [str(view.rank) for view in _ranks_of(row)]
    text = f"rank{'s' * (len(numbers) > 1)} {' '.join(numbers)}"
    return text if len(text) <= 14 else f"{len(numbers)} ranks"


def _without_gpu(view: RankView) -> dict[str, StyledLine]:
    """Return a rank's CPUs in place of a GPU's figures."""
    where = (dim(nodes_text(view.numa.cpu_nodes, "CPU") if view.numa is not None else ""),)
    return {"GPU": (dim(UNKNOWN),), "rank": (bold(f"rank {view.rank}"),), "PCIe": where, "CPUs": where}


def _title(machine: Machine, known: list[str], more: int, width: int) -> StyledLine:
    used = sum(bool(gpu.ranks) for gpu in machine.gpus)
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
    right = [Item((dim(f"▼ {more} more "),))] if more > 0 else []
    if len(known) > 1 and machine.host in known:
        right = [*right, Item((dim(f"host {known.index(machine.host) + 1} of {len(known)} "),), 1)]
    return fit(left, right, width)
