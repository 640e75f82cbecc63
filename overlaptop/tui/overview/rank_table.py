"""One row per rank: the parts of its steps, and its figures.

If several hosts are watched, each host's ranks are below a thin line. A job with many ranks is folded: a
mark a rank, and rows only of the selected rank and of those that deviate most.
"""

from typing import NamedTuple

from textual import events

from overlaptop.fleet.snapshot import RankView, Snapshot
from overlaptop.report.hosts import Group, groups
from overlaptop.report.order import SORT_KEYS, Deviations, by_place, deviations, node_size
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, bold, dim, faded, on
from overlaptop.tui.draw.table import GAP, aligned, scrolled
from overlaptop.tui.model import history
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.overview.columns import Column, Scales, columns_for, layout
from overlaptop.tui.overview.rank_map import RankMap, map_header
from overlaptop.tui.widgets.host_lines import heading
from overlaptop.tui.widgets.view import JobView

_MARGIN = 2
_LEAST_BELOW = 2
"""Lines below the marks of a folded job: the header and a row."""


class _Folded(NamedTuple):
    """A folded job: its marks, and the deviations that colour them."""

    snapshot: Snapshot
    quantity: str
    width: int
    found: Deviations
    map: RankMap
    worst: list[int]


class RankTable(JobView):
    """Header and rows; keeps the selected rank visible. A click selects, a second one opens."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._first = 0
        self._scales: Scales | None = None
        """Of the last drawing."""
        self._made: _Folded | None = None
        self._marks = range(0)
        """The shown lines of marks."""

    @property
    def page_rows(self) -> int:
        folded = self._folded()
        return max(1, self.size.height - 1) if folded is None else folded.map.line_ranks

    @property
    def places(self) -> list[int]:
        """Return all ranks, by place if the job is folded."""
        folded = self._folded()
        return [view.rank for view in (self.state.rows if folded is None else folded.map.ranks)]

    @property
    def listed(self) -> list[int]:
        return [entry.rank for entry in self._entries() if not isinstance(entry, Group)]

    def full_height(self, width: int) -> int:
        folded = self._folded(width)
        return 1 + max(1, len(self._entries())) + (1 + folded.map.height if folded is not None else 0)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        marks = self._draw_marks(width, height)
        return [*marks, *self._draw_rows(width, height - len(marks))]

    def _draw_marks(self, width: int, height: int) -> list[StyledLine]:
        folded, state = self._folded(width), self.state
        if folded is None:
            self._marks = range(0)
            return []
        selected = state.selected.rank if state.selected is not None else state.rank
        shown = max(1, min(folded.map.height, height - 1 - _LEAST_BELOW))
        first = scrolled(self._marks.start, folded.map.line_of(selected), folded.map.height, shown)
        self._marks, textured, members = range(first, first + shown), self.look.textured, state.groups
        lines = [map_header(folded.quantity, folded.found, width, textured=textured)]
        for number in self._marks:
            line = folded.map.line(number, folded.found, selected, members, textured=textured)
            lines.append((Segment(" " * _MARGIN), *line))
        return lines

    def _folded(self, width: int = 0) -> _Folded | None:
        state = self.state
        if not state.folded:
            return None
        width, made = width or self.size.width, self._made
        snapshot, quantity = state.snapshot, state.map_quantity
        made_of = (quantity, width)
        if made is None or made.snapshot is not snapshot or (made.quantity, made.width) != made_of:
            found, ranks = deviations(state.rows, quantity), by_place(state.rows)
            placed = RankMap(ranks, node_size(ranks), width - 2 * _MARGIN)
            self._made = made = _Folded(snapshot, quantity, width, found, placed, found.worst())
        return made

    def _draw_rows(self, width: int, height: int) -> list[StyledLine]:
        state = self.state
        self._scales = scales = Scales(state, textured=self.look.textured, before=self._scales)
        columns = self._columns(width)
        header: list[Segment] = [Segment(" " * _MARGIN)]
        for column, size in columns:
            title = column.header(scales, size)
            if column.key == state.sort_key and not state.folded:
                title = _marked(title, size, down=state.reverse)
            header += [*aligned(title, size, right=column.right), Segment(" " * GAP)]
        entries, selected = self._entries(), state.selected
        at = entries.index(selected) if selected in entries else 0
        self._first = scrolled(self._first, at, len(entries), height - 1)
        if self._first == at > 0 and height > 2 and isinstance(entries[at - 1], Group):
            self._first -= 1  # the host of its first rank
        lines: list[StyledLine] = [tuple(header)]
        for entry in entries[self._first : self._first + height - 1]:
            if isinstance(entry, Group):
                lines.append((Segment(" "), *heading(entry, state.now_ns, width - 2)))
            else:
                lines.append(_row(entry, columns, scales, cursor=entry is selected))
        if not state.rows:
            words = f"no rank matches {state.filter.words}" if state.filter.words else "no rank yet"
            lines.append((dim(f"  {words}"),))
        return lines

    async def on_click(self, event: events.Click) -> None:
        y = event.y
        if (folded := self._folded()) is not None:
            if y == 0:
                await self.screen.run_action("screen.map")
                return
            if y <= len(self._marks):
                ranks = folded.map.ranks_at(event.x - _MARGIN, self._marks[y - 1])
                if ranks:  # another click selects the other rank of the cell
                    rank = ranks[-1 if ranks[0] == self.state.rank else 0]
                    await self.screen.run_action(f"screen.select_rank({rank})")
                return
            y -= 1 + len(self._marks)
        entries, at = self._entries(), self._first + y - 1
        if y == 0:
            if (key := self._column_at(event.x)) in SORT_KEYS:
                await self.screen.run_action(f"screen.sort_by('{key}')")
        elif at < len(entries) and not isinstance(entry := entries[at], Group):
            await self.screen.run_action(f"screen.select_rank({entry.rank})")
            if (step := self._step_at(entry, event.x)) is not None:
                await self.screen.run_action(f"app.show_step({step})")
            elif event.chain >= 2:
                await self.screen.run_action("app.rank")

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        await self.screen.run_action(f"screen.move({direction})")

    def _entries(self) -> list[RankView | Group]:
        state = self.state
        if (folded := self._folded()) is not None:
            views, selected = {view.rank: view for view in state.rows}, state.selected
            above = [] if selected is None or selected.rank in folded.worst else [selected]
            return [*above, *(views[rank] for rank in folded.worst)]
        if not state.grouped:
            return list(state.rows)
        entries: list[RankView | Group] = []
        for group in groups(state.rows, state.snapshot.nodes, empty=not state.filter.words):
            entries += [group, *group.ranks]
        return entries

    def _columns(self, width: int) -> list[tuple[Column, int]]:
        state = self.state
        with_nodes = len(state.snapshot.nodes) > 1 and (state.folded or not state.grouped)
        with_slopes = bool(state.slopes)
        columns = columns_for(state.snapshot.ranks, with_nodes=with_nodes, with_slopes=with_slopes)
        return layout(columns, width - 2 * _MARGIN)

    def _column_at(self, x: int) -> str:
        return next((key for key, left, size in self._places() if left <= x < left + size), "")

    def _step_at(self, view: RankView, x: int) -> int | None:
        """Return the slowest step of a column of the history; None if the pointer is elsewhere."""
        for key, left, size in self._places():
            if key == "history" and left <= x < left + size:
                steps_per_column = Scales(self.state, textured=False).steps_per_column
                return history.slowest_in(view.history, size, steps_per_column, x - left)
        return None

    def _places(self) -> list[tuple[str, int, int]]:
        found, left = [], _MARGIN
        for column, size in self._columns(self.size.width):
            found.append((column.key, left, size))
            left += size + GAP
        return found


def _row(view: RankView, columns: list[tuple[Column, int]], scales: Scales, *, cursor: bool) -> StyledLine:
    row: list[Segment] = [Segment("▸" if cursor else " ", TextStyle("accent", bold=True))]
    row.append(Segment("○", TextStyle("warning")) if view.node_lost else Segment(" "))
    for column, size in columns:
        cell = column.cell(view, scales, size)
        # The reason why a row is not live replaces its bar, and does not fade.
        if view.node_lost or ((view.stale or view.ended) and column.key != "bar"):
            cell = faded(cell)
        row += [*aligned(cell, size, right=column.right), Segment(" " * GAP)]
    return on(row, "cursor") if cursor else tuple(row)


def _marked(title: StyledLine, width: int, *, down: bool) -> StyledLine:
    words = "".join(segment.text for segment in title).strip()
    return (bold(f"{words[: max(0, width - 1)]}{'▼' if down else '▲'}"),)
