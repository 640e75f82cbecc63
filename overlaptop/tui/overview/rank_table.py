"""One row per rank: the parts of its steps, and its figures.

If several hosts are watched, each host's ranks are below a thin line. A job with many ranks is folded: a
mark a rank, and rows only of the selected rank and of those that deviate most.
"""

from collections.abc import Collection, Sequence
from itertools import zip_longest

from textual import events

from overlaptop.fleet.snapshot import RankView
from overlaptop.report.hosts import Group, groups
from overlaptop.report.order import LEVELS, QUANTITIES, SORT_KEYS, by_place, deviations, node_size
from overlaptop.text import whole_percent
from overlaptop.tui.draw.bars import merged
from overlaptop.tui.draw.layout import Item, fit, pad
from overlaptop.tui.draw.segments import KEY, Segment, StyledLine, TextStyle, bold, dim, faded, on
from overlaptop.tui.draw.table import GAP, scrolled
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.overview.columns import COLUMNS, ON_AXIS, Column, Scales, columns_for, layout
from overlaptop.tui.timeline.timeline import LABEL, lane_cells
from overlaptop.tui.widgets.host_lines import heading
from overlaptop.tui.widgets.view import JobView

_MARGIN = 2
_COLORS = {-2: "far_better", -1: "better", 0: "usual", 1: "worse", 2: "far_worse"}
_LEAST_BELOW = 2  # Lines below the marks of a folded job: the header and a row


class RankMap:
    """All ranks of a large job as marks, two ranks a cell, coloured by their deviation from the median.

    The upper mark of a cell is the even local rank. Each line holds whole nodes, so that a bad GPU position
    is a vertical stripe and a bad node is a short horizontal one.
    """

    def __init__(self, rows: Sequence[RankView], quantity: str, width: int) -> None:
        self._rows, self._quantity, self._width = rows, quantity, width
        self.ranks = by_place(rows)
        self._found = deviations(rows, quantity)
        self.worst = self._found.worst()  # The ranks that deviate most
        most, node_ranks = max(2, 2 * (width - 2 * _MARGIN)), node_size(self.ranks)
        whole = most // node_ranks * node_ranks if node_ranks % 2 == 0 else 0
        self.line_ranks = whole or most  # Ranks on one line

    def is_of(self, rows: Sequence[RankView], quantity: str, width: int) -> bool:
        return self._rows is rows and (self._quantity, self._width) == (quantity, width)

    @property
    def height(self) -> int:
        return -(-len(self.ranks) // self.line_ranks)

    def line_of(self, rank: int) -> int:
        """Return the line of a rank's mark; 0 if it has none."""
        return next((at for at, view in enumerate(self.ranks) if view.rank == rank), 0) // self.line_ranks

    def ranks_at(self, x: int, line: int) -> list[int]:
        """Return the ranks of a cell; none beside the marks."""
        at = 2 * (x - _MARGIN)
        here = self.ranks[line * self.line_ranks + at :][:2] if 0 <= at < self.line_ranks else ()
        return [view.rank for view in here]

    def line(self, number: int, selected: int, members: Collection[int]) -> StyledLine:
        """``members``: ranks of the selected rank's groups."""
        ranks = self.ranks[number * self.line_ranks :][: self.line_ranks]
        colors = [self._color(view, selected, members) for view in ranks]
        pairs = zip_longest(colors[::2], colors[1::2], fillvalue="")
        return (Segment(" " * _MARGIN), *merged(Segment("▀", TextStyle(*pair)) for pair in pairs))

    def _color(self, view: RankView, selected: int, members: Collection[int]) -> str:
        level = self._found.level(view.rank)
        if view.rank == selected:
            return "bright"
        if level is None or view.ended or view.node_lost:
            return "screen"
        return "member" if level == 0 and view.rank in members else _COLORS[level]

    def header(self) -> StyledLine:
        def mark(level: int) -> Segment:
            return Segment("█", TextStyle(_COLORS[level], _COLORS[level]))

        low, high = map(whole_percent, LEVELS)
        quantity = QUANTITIES[self._quantity]
        suspect, other = ("more", "less") if quantity.is_bad_high else ("less", "more")
        median = quantity.describe(self._found.median)
        left = [
            Item((bold(self._quantity), dim(" median "), bold(median))),
            Item((Segment("M", KEY), dim(" next")), 1),
        ]
        right = [
            Item((mark(1), dim(f" {low} "), mark(2), dim(f" {high} {suspect}")), 2),
            Item((mark(-1), dim(f" {low} "), mark(-2), dim(f" {high} {other}")), 3),
        ]
        return (Segment("  "), *fit(left, right, self._width - 3))


class RankTable(JobView):
    """Header and rows; keeps the selected rank visible. A click selects, a second one opens."""

    _first = 0
    _scales: Scales | None = None  # Of the last drawing
    _map: RankMap | None = None
    _marks = range(0)  # The shown lines of marks

    def __init__(self, dashboard: Dashboard, *, on_axis: bool = False) -> None:
        """``on_axis``: draw the ranks' step on one axis, in place of bars and columns."""
        super().__init__(dashboard)
        self._on_axis = on_axis

    @property
    def folded(self) -> bool:
        return self.state.folded and not self._on_axis

    @property
    def page_rows(self) -> int:
        marks = self._folded()
        return max(1, self.size.height - 1) if marks is None else marks.line_ranks

    @property
    def places(self) -> list[int]:
        """Return all ranks, by place if the job is folded."""
        marks = self._folded()
        return [view.rank for view in (self.state.rows if marks is None else marks.ranks)]

    @property
    def listed(self) -> list[int]:
        return [entry.rank for entry in self._entries() if not isinstance(entry, Group)]

    def full_height(self, width: int) -> int:
        marks = self._folded(width)
        return 1 + max(1, len(self._entries())) + (1 + marks.height if marks is not None else 0)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        marks, state = self._folded(width), self.state
        if marks is None:
            return self._draw_rows(width, height)
        selected = state.selected.rank if state.selected is not None else state.rank
        shown = max(1, min(marks.height, height - 1 - _LEAST_BELOW))
        first = scrolled(self._marks.start, marks.line_of(selected), marks.height, shown)
        self._marks = range(first, first + shown)
        lines = [marks.header(), *(marks.line(at, selected, state.groups) for at in self._marks)]
        return [*lines, *self._draw_rows(width, height - len(lines))]

    def _folded(self, width: int = 0) -> RankMap | None:
        """Return the map of a folded job; None: each rank has a row."""
        if not self.folded:
            return None
        made_of = self.state.rows, self.state.map_quantity, width or self.size.width
        if self._map is None or not self._map.is_of(*made_of):
            self._map = RankMap(*made_of)
        return self._map

    def _draw_rows(self, width: int, height: int) -> list[StyledLine]:
        state = self.state
        self._scales = scales = Scales(state, self._scales)
        columns = self._columns(width)
        header: list[Segment] = [Segment(" " * _MARGIN)]
        for column, size in columns:
            title = column.header(scales, size)
            if column.key == state.sort_key and not self.folded:
                title = _marked(title, size, down=state.reverse)
            header += [*pad(title, size, right=column.right), Segment(" " * GAP)]
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
        if (marks := self._folded()) is not None:
            if y == 0:
                await self.screen.run_action("screen.map")
                return
            if y <= len(self._marks):
                ranks = marks.ranks_at(event.x, self._marks[y - 1])
                if ranks:  # another click selects the other rank of the cell
                    rank = ranks[-1 if ranks[0] == self.state.rank else 0]
                    await self.screen.run_action(f"screen.select_rank({rank})")
                return
            y -= 1 + len(self._marks)
        entries, at = self._entries(), self._first + y - 1
        if y == 0:
            if (key := self._column_at(event.x)[0]) in SORT_KEYS:
                await self.screen.run_action(f"screen.sort_by('{key}')")
        elif at < len(entries) and not isinstance(entry := entries[at], Group):
            await self.screen.run_action(f"screen.select_rank({entry.rank})")
            key, x, size = self._column_at(event.x)
            step = (
                self._scales.columns(entry, size).slowest(x) if key == "history" and self._scales else None
            )
            if step is not None:
                await self.screen.run_action(f"app.show_step({step})")
            elif event.chain >= 2:
                await self.screen.run_action("app.rank")

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        await self.screen.run_action(f"screen.move({direction})")

    def _entries(self) -> list[RankView | Group]:
        state = self.state
        if (marks := self._folded()) is not None:
            views, selected = {view.rank: view for view in state.rows}, state.selected
            above = [] if selected is None or selected.rank in marks.worst else [selected]
            return [*above, *(views[rank] for rank in marks.worst)]
        if not state.grouped:
            return list(state.rows)
        entries: list[RankView | Group] = []
        for group in groups(state.rows, state.snapshot.nodes, empty=not state.filter.words):
            entries += [group, *group.ranks]
        return entries

    def _columns(self, width: int) -> list[tuple[Column, int]]:
        state = self.state
        if self._on_axis:
            return [(COLUMNS[0], LABEL - _MARGIN - GAP), (ON_AXIS, lane_cells(width))]
        has_nodes = len(state.snapshot.nodes) > 1 and (state.folded or not state.grouped)
        extra = ["node"] * has_nodes + ["critical"] * bool(state.slopes)
        return layout(columns_for(state.snapshot.ranks, extra), width - 2 * _MARGIN)

    def _column_at(self, x: int) -> tuple[str, int, int]:
        """Return the column at ``x``, the position in it, and its width; an empty key: none."""
        x -= _MARGIN
        for column, size in self._columns(self.size.width):
            if 0 <= x < size:
                return column.key, x, size
            x -= size + GAP
        return "", 0, 0


def _row(view: RankView, columns: list[tuple[Column, int]], scales: Scales, *, cursor: bool) -> StyledLine:
    row: list[Segment] = [Segment("▸" if cursor else " ", TextStyle("accent", bold=True))]
    row.append(Segment("○", TextStyle("warning")) if view.node_lost else Segment(" "))
    for column, size in columns:
        cell = column.cell(view, scales, size)
        # The reason why a row is not live replaces its bar, and does not fade.
        if view.node_lost or ((view.stale or view.ended) and column.key != "bar"):
            cell = faded(cell)
        row += [*pad(cell, size, right=column.right), Segment(" " * GAP)]
    return on(row, "cursor") if cursor else tuple(row)


def _marked(title: StyledLine, width: int, *, down: bool) -> StyledLine:
    words = "".join(segment.text for segment in title).strip()
    return (bold(f"{words[: max(0, width - 1)]}{'▼' if down else '▲'}"),)
