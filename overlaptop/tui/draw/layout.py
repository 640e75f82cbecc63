"""Lines from pieces: cut, side by side, over several lines, and as paragraphs, in a width of cells."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from overlaptop.tui.draw.segments import DIM, TEXT, Segment, StyledLine, TextStyle, dim


def line_width(line: Iterable[Segment]) -> int:
    return sum(cell_len(segment.text) for segment in line)


def crop(line: Iterable[Segment], width: int) -> StyledLine:
    kept: list[Segment] = []
    for segment in line:
        if width <= 0:
            break
        size = cell_len(segment.text)
        kept.append(segment if size <= width else segment._replace(text=set_cell_size(segment.text, width)))
        width -= size
    return tuple(kept)


def elided(line: StyledLine, width: int) -> StyledLine:
    """Return the line if it fits into ``width`` cells, else its beginning and ``…`` for the missing words.
    Trailing blanks do not count.
    """
    text = "".join(segment.text for segment in line)
    if line_width(line) - (len(text) - len(text.rstrip(" "))) <= width:
        return crop(line, width)
    kept = crop(line, width - 1)
    return (*kept, Segment("…", kept[-1].style)) if kept else crop(line, width)


def pad(line: StyledLine, width: int, *, right: bool = False) -> StyledLine:
    """Return the line cropped or filled with blanks to exactly ``width`` cells; ``right``: at the right."""
    missing = width - line_width(line)
    if missing <= 0:
        return crop(line, width)
    blank = Segment(" " * missing)
    return (blank, *line) if right else (*line, blank)


class Item(NamedTuple):
    """A piece of a line that is left out as a whole if it does not fit."""

    line: StyledLine
    priority: int = 0  # The highest priority is left out first; 0 stays


def joined(lines: Sequence[StyledLine], gap: str = "   ") -> StyledLine:
    segments: list[Segment] = []
    for line in lines:
        if segments and line:
            segments.append(Segment(gap))
        segments.extend(line)
    return tuple(segments)


def fit(left: Sequence[Item], right: Sequence[Item], width: int, gap: str = "   ") -> StyledLine:
    """Return ``left`` at the left edge and ``right`` at the right one, without items that do not fit."""
    left, right = list(left), list(right)
    while True:
        start, end = joined([i.line for i in left], gap), joined([i.line for i in right], gap)
        used = line_width(start) + line_width(end) + (len(gap) if start and end else 0)
        if used <= width or not _leave_out(right, left):
            break
    if not end:
        return elided(start, width)
    space = max(0, width - line_width(end))
    return crop((*pad(elided(start, max(0, space - 1)), space), *end), width)


def wrap(items: Sequence[Item], width: int, rows: int, gap: str = "   ") -> list[StyledLine]:
    """Return the items in order over at most ``rows`` lines. If they do not fit, those of the highest
    priorities are left out first, then those that fit on no line.
    """
    kept = list(items)
    while True:
        lines: list[list[StyledLine]] = [[]]
        left_out = False
        for item in kept:
            size = line_width(joined([*lines[-1], item.line], gap))
            if size > width and lines[-1]:
                if len(lines) == rows:
                    left_out = True
                    continue
                lines.append([])
            lines[-1].append(item.line)
        if not left_out or not _leave_out(kept):
            return [elided(joined(line, gap), width) for line in lines]


def paragraph(
    text: str, width: int, style: TextStyle = DIM, *, indent: int = 1, rows: int = 8
) -> list[StyledLine]:
    """Return words as a paragraph of at most ``rows`` lines; if cut, the last one ends in ``…``."""
    space, words = max(1, width - indent - 1), " ".join(text.split())
    lines = [line.plain for line in Content(words).wrap(space)] if words else []
    if len(lines) > rows:
        lines[rows - 1 :] = [f"{lines[rows - 1]} {lines[rows]}"]
    return [(Segment(" " * indent, style), *elided((Segment(line, style),), space)) for line in lines]


def hanging(head: StyledLine, text: str, width: int, style: TextStyle = TEXT) -> list[StyledLine]:
    """Return words beside ``head``, with further lines indented to match."""
    first, *others = paragraph(text, width, style, indent=line_width(head), rows=20) or [()]
    return [(*head, *first[1:]), *others]


def titled(title: str, *more: Segment) -> StyledLine:
    return (Segment(f" {title}", TextStyle(bold=True)), *((Segment("   "), *more) if more else ()))


def folded(text: str, width: int, style: TextStyle) -> list[StyledLine]:
    """Return a path or a line of code over all lines needed, since it is there to be copied."""
    space = max(10, width - 2)
    return [(Segment(" "), Segment(text[at : at + space], style)) for at in range(0, len(text), space)]


def code_to_keep(code: str, width: int) -> list[StyledLine]:
    """Return the line of code that makes a value permanent, beside its title if both fit, else below it."""
    style, title = TextStyle("accent", bold=True), dim(" to make it permanent:")
    if len(title.text) + len(code) + 2 <= width:
        return [(title, Segment(" "), Segment(code, style))]
    return [(title,), *folded(code, width, style)]


def _leave_out(*rows: list[Item]) -> bool:
    """Remove the last item of the highest priority; False: all have priority 0."""
    if worst := max((item.priority for row in rows for item in row), default=0):
        row = next(row for row in rows if any(item.priority == worst for item in row))
        del row[max(at for at, item in enumerate(row) if item.priority == worst)]
    return worst > 0
