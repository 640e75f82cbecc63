"""Tables: the columns that fit, and the cells of a row side by side."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len

from overlaptop.tui.draw.layout import elided, pad
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, dim, on

GAP = 2  # Blanks between columns


class Column(NamedTuple):
    """``cells``: the least width; ``shown_from``: the table width from which the column is shown."""

    title: str
    cells: int
    right: bool = True
    shown_from: int = 0


class Table:
    """Columns in a given width. Rows begin with two cells for the cursor."""

    def __init__(
        self, columns: Sequence[Column], width: int, words: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """``words``: all texts of these columns, which share the remaining width in this order."""
        self._columns, self._width = columns, width
        self._cells = {each: each.cells for each in columns if width >= each.shown_from}
        left = width - GAP - sum(cells + GAP for cells in self._cells.values())
        named = {column.title: column for column in self._cells}
        for title, held in (words or {}).items():
            if (column := named.get(title)) is None:
                continue
            more = max(0, min(left, max(map(cell_len, held), default=0) - column.cells))
            self._cells[column] += more
            left -= more

    def cells(self, column: Column) -> int:
        return self._cells[column]

    def header(self, renamed: Mapping[str, str] | None = None) -> StyledLine:
        """The columns' titles; ``renamed``: replaces some of them."""
        names = renamed or {}
        return self.row([(dim(names.get(each.title, each.title)),) for each in self._columns])

    def row(self, cells: Iterable[StyledLine], *, cursor: bool = False) -> StyledLine:
        """Return a line of one cell for each column, shown or not."""
        line = [Segment("▸ " if cursor else "  ", TextStyle("accent", bold=True))]
        for column, cell in zip(self._columns, cells, strict=True):
            if column in self._cells:
                size = self._cells[column]
                line += [*pad(elided(cell, size), size, right=column.right), Segment(" " * GAP)]
        shown = elided(tuple(line), self._width)
        return on(shown, "cursor") if cursor else shown


def scrolled(first: int, selected: int, rows: int, height: int) -> int:
    """Return the first visible row, moved as little as possible so that the selected one is visible."""
    return max(0, min(max(selected - height + 1, min(first, selected)), rows - height))
