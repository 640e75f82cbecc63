"""Prints tables as Markdown has them, for README.md; a row at a time, since some take minutes."""

from __future__ import annotations

UNKNOWN = "–"


def print_head(*headings: str) -> None:
    """Print the first two lines."""
    print_row(*headings)
    print_row(*("---" for _ in headings))


def print_row(*cells: str) -> None:
    """Print one line, also into a pipe at once."""
    print(f"| {' | '.join(cells)} |", flush=True)


def number(value: float | None, digits: int = 1, unit: str = "") -> str:
    """A cell; a dash where it is not known."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{unit}"
