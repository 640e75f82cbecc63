"""Aligned columns of plain text."""

from collections.abc import Collection, Sequence

from overlaptop.text import printable


class Table:
    """A table: columns as wide as their widest cell, numbers to the right, two spaces between."""

    def __init__(self, head: Sequence[str], *, left: Collection[str] = ()) -> None:
        """``left``: names of the text columns."""
        self._rows: list[list[str]] = [list(head)]
        self._left = [name in left for name in head]

    def add(self, *cells: str) -> None:
        assert len(cells) == len(self._left)
        self._rows.append([printable(cell) for cell in cells])

    def render(self) -> str:
        widths = [max(map(len, column)) for column in zip(*self._rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(row, widths, self._left, strict=True)
            ).rstrip()
            for row in self._rows
        )
