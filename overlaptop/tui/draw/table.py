"""Tables: the columns that fit, and the cells of a row side by side."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

from rich.cells import cell_len

from overlaptop.tui.draw.layout import elided, line_width, pad
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, dim, on

Row = TypeVar("Row")
Cell: TypeAlias = StyledLine | Segment | str
_Cells: TypeAlias = Mapping[str, Cell]
GAP = 2  # Blanks between columns


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column, and the cell of a row in it."""

    title: str
    cells: int  # Least width
    cell: Callable[[Row], Cell] | None = None  # None: rows are mappings, by title
    right: bool = True
    shown_from: int = 0  # Width of the table from which it is shown
    grows: bool = False  # Whether it takes from the remaining width what its cells need
    priority: int = 0  # If not all fit, the highest priority is left out first; 0 stays

    def line(self, row: Row) -> StyledLine:
        cell: Cell = self.cell(row) if self.cell is not None else cast(_Cells, row).get(self.title, "")
        if isinstance(cell, str):
            return (Segment(cell),)
        return (cell,) if isinstance(cell, Segment) else cell


class Table(Generic[Row]):
    """Columns in a given width. Rows begin with two cells for the cursor."""

    def __init__(self, columns: Sequence[Column[Row]], width: int, rows: Iterable[Row] = ()) -> None:
        """``rows``: all rows, for the columns that grow; the first of them takes most."""
        self._width, rows = width, list(rows)
        shown = [each for each in columns if width >= each.shown_from]
        while (left := width - sum(each.cells + GAP for each in shown)) < 0:
            worst = max(shown, key=lambda each: each.priority)
            if not worst.priority:
                break
            shown.remove(worst)
        self._cells = {each: each.cells for each in shown}
        left -= GAP  # of the cursor
        for column in self._cells:
            if column.grows and left > 0:
                widest = max((line_width(column.line(row)) for row in rows), default=0)
                more = min(left, max(0, widest - column.cells, cell_len(column.title) - column.cells))
                self._cells[column] += more
                left -= more

    def header(self, renamed: Mapping[str, str] | None = None) -> StyledLine:
        """The columns' titles; ``renamed``: replaces some of them."""
        names = renamed or {}
        return self._line((dim(names.get(each.title, each.title)),) for each in self._cells)

    def row(self, row: Row, cursor: bool = False) -> StyledLine:
        shown = self._line((each.line(row) for each in self._cells), "▸ " if cursor else "  ")
        return on(shown, "cursor") if cursor else shown

    def _line(self, cells: Iterable[StyledLine], mark: str = "  ") -> StyledLine:
        line = [Segment(mark, TextStyle("accent", bold=True))]
        for (column, size), cell in zip(self._cells.items(), cells, strict=True):
            line += [*pad(elided(cell, size), size, right=column.right), Segment(" " * GAP)]
        return elided(tuple(line), self._width)


def scrolled(first: int, selected: int, rows: int, height: int) -> int:
    """Return the first visible row, moved as little as possible so that the selected one is visible."""
    return max(0, min(max(selected - height + 1, min(first, selected)), rows - height))
