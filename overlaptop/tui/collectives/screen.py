"""The shown step's collectives on all ranks, and details of the selected one."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from overlaptop.fleet.records import BOUNDS
from overlaptop.fleet.snapshot import RankView
from overlaptop.report.hosts import ranks_and_hosts
from overlaptop.report.links import bus_peak_bytes_per_s
from overlaptop.report.who_is_late import why_not_attributed
from overlaptop.text import UNKNOWN, Unit, byte_count, duration, gigabytes_per_s, plural, whole_percent
from overlaptop.tui.collectives.rows import ASCENDING, GROUPINGS, ORDERS, Row, grouped, ordered, rows_of
from overlaptop.tui.draw.layout import Item, fit, paragraph, titled
from overlaptop.tui.draw.segments import DIM, TEXT, Segment, StyledLine, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.help.glossary import COLLECTIVES
from overlaptop.tui.model.keys import COLLECTIVES_KEYS, bindings
from overlaptop.tui.model.state import following, step_name
from overlaptop.tui.overview.screen import TimelinesScreen
from overlaptop.tui.timeline.timeline import op_name
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import RowList

if TYPE_CHECKING:
    from overlaptop.timeline.arrivals import Collective

_DETAIL_LINES = 3


class CollectiveTable(RowList[Row]):
    """A title, a row for each collective or group, and below the selected one in words."""

    order, reverse = "exposed", False  # ``order``: one of ORDERS
    grouping = ""  # One of GROUPINGS

    @property
    def rows(self) -> list[Row]:
        rows = grouped(self._singles(), self.grouping, self.state.details)
        return ordered(rows, self.order, reverse=self.reverse)

    def key(self, row: Row) -> object:
        return row.key

    def put(self, row: Row) -> None:
        self.dashboard.hold_step()
        super().put(row)

    def costliest(self, row: Row) -> "Collective":
        own = (each for each in self._singles() if each.members[0] in row.members)
        return max(own, key=lambda each: each.exposed_ns or 0).members[0]

    def draw(self, width: int, height: int) -> list[StyledLine]:
        rows, state = self.rows, self.state
        if not rows:
            why = "the step has none" if state.waits is not None else why_not_attributed(state.snapshot)
            return [titled("Collectives"), (), *paragraph(f"no collective to show: {why}", width, TEXT)]
        detail: list[StyledLine] = []
        if height >= 4 + _DETAIL_LINES:
            detail = _describe(rows[self.at(rows)], self.grouping, self.state.snapshot.ranks, width)
        space = height - 2 - (1 + len(detail) if detail else 0)
        unit = Unit.for_scale(max(each.step_ns for each in state.details.values()))
        table = Table(_columns(rows, unit, self.grouping), width, rows)
        lines = [self._title(rows, unit, width), table.header(self._headers())]
        lines += self.listed(rows, space, table.row)
        lines += [()] * (height - len(lines) - len(detail))
        return [*lines, *detail]

    def _singles(self) -> tuple[Row, ...]:
        waits, details = self.state.waits, self.state.details
        if waits is None or not details:
            return ()
        views = {view.rank: view for view in self.state.snapshot.ranks}

        def peak(ranks: tuple[int, ...]) -> int | None:
            return bus_peak_bytes_per_s([views[rank] for rank in ranks])

        return rows_of(waits.collectives, details, peak)

    def _title(self, rows: list[Row], unit: Unit, width: int) -> StyledLine:
        step, number = step_name(next(iter(self.state.details.values())).step)
        found = sum(len(row.members) for row in rows)
        not_attributed = sum(bool(each.not_attributed) for row in rows for each in row.members)
        # The largest number of a rank's calls whose match on the other ranks is not known.
        collectives = self.state.waits.collectives if self.state.waits is not None else ()
        matched = Counter(rank for each in collectives for rank in each.ranks)
        left_out = max(len(each.collectives) - matched[each.rank] for each in self.state.details.values())
        left = [
            Item((*titled("Collectives"), dim(f"  {step}"), bold(number))),
            Item((Segment(plural(found, "collective")),), 4),
            Item((Segment(f"{not_attributed:,} not attributed" if not_attributed else ""),), 2),
            Item((Segment(f"up to {left_out:,} more a rank not matched" if left_out else ""),), 3),
            Item((dim(f"{unit.name}, the mean over ranks"),), 1),
            Item((dim(f"by {self.grouping}" if self.grouping else ""),), 1),
        ]
        return fit([item for item in left if item.line[0].text], [], width)

    def _headers(self) -> dict[str, str]:
        """Return the changed headers: a mark at the sort column, and one if hidden is a bound."""
        down = self.reverse == (self.order in ASCENDING)
        names = {self.order: f"{self.order}{'▼' if down else '▲'}"}
        return names if self.state.exact else {**names, "hidden": f"{BOUNDS['hidden_ns']}hidden"}


def _name(row: Row, grouping: str) -> str:
    name = op_name(row.key)
    return f"{name} ×{len(row.members)}" if grouping else name


def _columns(rows: Sequence[Row], unit: Unit, grouping: str) -> list[Column[Row]]:
    def time(name: str) -> Callable[[Row], Segment]:
        return lambda row: _known(unit.text(getattr(row, f"{name}_ns")))

    def late(row: Row) -> Segment:
        share = f" ({whole_percent(row.late_in / len(row.members))})" if grouping else ""
        return _known(UNKNOWN if row.late_rank is None else f"{row.late_rank}{share}")

    columns: list[Column[Row]] = [
        Column("op", 12, lambda row: bold(_name(row, grouping)), right=False, grows=True),
        Column("group", 8, lambda row: dim(row.key.group), right=False, shown_from=125, grows=True),
        Column("bytes", 9, lambda row: byte_count(row.bytes), shown_from=76),
        Column("start", 8, time("start"), shown_from=98),
        Column("waiting", 8, time("wait")),
        Column("transfer", 9, time("transfer"), shown_from=86),
        Column("hidden", 8, time("hidden"), shown_from=108),
        Column("exposed", 9, lambda row: bold(unit.text(row.exposed_ns))),
        Column("GB/s", 6, lambda row: _known(gigabytes_per_s(row.bus_bandwidth))),
    ]
    if any(row.bus_share is not None for row in rows):
        columns.append(Column("of peak", 7, lambda row: dim(whole_percent(row.bus_share)), shown_from=117))
    columns.append(Column("late rank", 9, late))
    if any(row.not_attributed for row in rows):
        why = Column("why not attributed", 26, _why_not, right=False, shown_from=150, grows=True)
        columns.append(why)
    return columns


def _known(figure: str) -> Segment:
    return Segment(figure, DIM if figure == UNKNOWN else TEXT)


def _why_not(row: Row) -> Segment:
    return dim(row.not_attributed)


def _describe(row: Row, grouping: str, views: Sequence[RankView], width: int) -> list[StyledLine]:
    """Return the selected row: its identity, and how exact its breakdown is, or why it has none."""
    split = [each for each in row.members if not each.not_attributed]
    ranks = sorted({rank for each in row.members for rank in each.ranks})
    what = f"{_name(row, grouping)} of {row.key.group or 'all groups'}, {ranks_and_hosts(ranks, views)}: "
    if len(row.members) > 1:
        not_attributed = len(row.members) - len(split)
        how = f"{len(split):,} of {len(row.members):,} split"
        how += f"; {not_attributed:,} not: {row.not_attributed}" if not_attributed else ""
    elif not split:
        how = f"not attributed: {row.not_attributed}"
    else:
        [each] = split
        how = f"bytes moved for {duration(each.least_transfer_ns)}; the ranks' ends agree within "
        how += f"{duration(each.residual_ns)}"
        if each.late_rank is not None:
            caused = f"caused {duration(each.caused_wait_ns)} of waiting, all ranks together"
            how = f"rank {each.late_rank} began last and {caused}; {how}"
    return paragraph(what + how, width, TEXT, rows=_DETAIL_LINES)


class CollectivesScreen(PageScreen[CollectiveTable]):
    """The table, and its keys."""

    title_in_help = COLLECTIVES
    BINDINGS: ClassVar = bindings(COLLECTIVES_KEYS)
    view_class = CollectiveTable

    def action_sort(self) -> None:
        self._view.order, self._view.reverse = following(self._view.order, list(ORDERS)), False

    def action_reverse(self) -> None:
        self._view.reverse = not self._view.reverse

    def action_group(self, direction: int) -> None:
        self._view.grouping = following(self._view.grouping, list(GROUPINGS), direction)

    async def action_open(self) -> None:
        """Open the selected collective, of several the one with most exposed time, on the timelines."""
        self.dashboard.hold_step()
        if (row := self._view.selected) is None:
            return
        state, wanted = self.state, self._view.costliest(row)
        if state.selected is None or state.selected.rank not in wanted.ranks:
            state.rank = wanted.ranks[0] if wanted.late_rank is None else wanted.late_rank
            self.dashboard.watch()
        if (lanes := state.lanes) is not None and wanted in lanes.matched:
            state.select_collective(lanes.matched.index(wanted))
        timelines = TimelinesScreen(self.dashboard)
        await self.app.push_screen(timelines)
        timelines.action_fit_collective()
