"""One row a rank: what its newest measured step was made of, and its figures."""

from __future__ import annotations

from textual import events
from textual.message import Message

from overlaptop.tui.choosing import SORT_KEYS
from overlaptop.tui.columns import GAP, Scales, aligned, columns_for, layout
from overlaptop.tui.ink import BOLD, DIM, Ink, Line, Run, faded, on
from overlaptop.tui.state import ViewState
from overlaptop.tui.widgets.line_view import LineView

_MARGIN = 2


class RankTable(LineView):
    """Header and rows; keeps the chosen rank in sight. A click chooses, a second one opens."""

    class Chosen(Message):
        """A row was clicked."""

        def __init__(self, rank: int, opened: bool) -> None:
            super().__init__()
            self.rank = rank
            self.opened = opened

    class Sorted(Message):
        """A column's header was clicked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, state: ViewState, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(state, id=id)
        self._first = 0

    @property
    def page_rows(self) -> int:
        """Rows that are in sight."""
        return max(1, self.size.height - 1)

    def draw(self, width: int, height: int) -> list[Line]:
        """The header line and the rows in sight."""
        state = self.state
        scales = Scales.of(state)
        columns = layout(columns_for(state.snapshot.ranks), width - 2 * _MARGIN)
        header: list[Run] = [Run(" " * _MARGIN)]
        for column, size in columns:
            title = column.header(scales, size)
            if column.key == state.sort_key:
                title = _marked(title, size, down=state.reverse)
            header += [*aligned(title, size, right=column.right), Run(" " * GAP)]
        rows, chosen = state.rows, state.chosen
        self._first = _scrolled(self._first, rows.index(chosen) if chosen else 0, len(rows), height - 1)
        lines: list[Line] = [tuple(header)]
        for view in rows[self._first : self._first + height - 1]:
            cursor = chosen is not None and view.rank == chosen.rank
            row: list[Run] = [Run("▸ " if cursor else "  ", Ink("accent", bold=True))]
            for column, size in columns:
                cell = column.cell(view, scales, size)
                if (view.stale or view.ended) and column.key != "bar":
                    cell = faded(cell)
                row += [*aligned(cell, size, right=column.right), Run(" " * GAP)]
            lines.append(on(row, "cursor") if cursor else tuple(row))
        if not rows:
            words = f"no rank matches {state.filter.words}" if state.filter.words else "no rank yet"
            lines.append((Run(f"  {words}", DIM),))
        return lines

    def on_click(self, event: events.Click) -> None:
        """Choose or open a rank; sort by a column."""
        if event.y == 0:
            if (key := self._column_at(event.x)) in SORT_KEYS:
                self.post_message(self.Sorted(key))
            return
        at = self._first + event.y - 1
        rows = self.state.rows
        if at < len(rows):
            self.post_message(self.Chosen(rows[at].rank, opened=event.chain >= 2))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves through the ranks."""
        self._wheel(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves through the ranks."""
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, rows: int) -> None:
        event.stop()
        self.state.move(rows)
        if chosen := self.state.chosen:
            self.post_message(self.Chosen(chosen.rank, opened=False))

    def _column_at(self, x: int) -> str:
        left = _MARGIN
        columns = columns_for(self.state.snapshot.ranks)
        for column, size in layout(columns, self.size.width - 2 * _MARGIN):
            if left <= x < left + size:
                return column.key
            left += size + GAP
        return ""


def _marked(title: Line, width: int, *, down: bool) -> Line:
    """The header of the column that is sorted by."""
    words = "".join(run.text for run in title).strip()
    return (Run(f"{words[: max(0, width - 1)]}{'▼' if down else '▲'}", BOLD),)


def _scrolled(first: int, chosen: int, rows: int, height: int) -> int:
    """The first row in sight, moved as little as possible for the chosen one to be seen."""
    if chosen < first:
        first = chosen
    elif chosen >= first + height:
        first = chosen - height + 1
    return max(0, min(first, rows - height))
