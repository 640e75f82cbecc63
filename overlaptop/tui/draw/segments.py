"""Styled text: segments in named styles, and lines of segments. Widgets draw them; colours come later.

Lines compare by value, so a widget repaints only those that changed.
"""

from collections.abc import Iterable
from typing import NamedTuple

WHOLE = 8


class TextStyle(NamedTuple):
    """Names of colours in the palette, and emphasis."""

    fg: str = "text"
    bg: str = ""  # Empty: the screen's background
    bold: bool = False
    reverse: bool = False  # Used only without colours, in place of a background
    faded: bool = False
    eighths: int = WHOLE
    """Eighths of a cell that are covered: with less than WHOLE, the colour is that share of ``fg`` over
    ``bg``."""


class Segment(NamedTuple):
    """Text in one style."""

    text: str
    style: TextStyle = TextStyle()


StyledLine = tuple[Segment, ...]

TEXT = TextStyle()
BOLD = TextStyle("bright", bold=True)
DIM = TextStyle("dim")
BOLD_WARNING = TextStyle("warning", bold=True)
FAINT = TextStyle("faint")
KEY = TextStyle("bright", "key", bold=True, reverse=True)


def dim(text: str) -> Segment:
    return Segment(text, DIM)


def bold(text: str) -> Segment:
    return Segment(text, BOLD)


def on(line: Iterable[Segment], bg: str) -> StyledLine:
    """Return the line over a background, for segments without their own."""
    return tuple(Segment(text, style._replace(bg=style.bg or bg)) for text, style in line)


def faded(line: Iterable[Segment]) -> StyledLine:
    """Return the line in pale styles, for outdated content."""
    return tuple(Segment(text, style._replace(faded=True)) for text, style in line)
