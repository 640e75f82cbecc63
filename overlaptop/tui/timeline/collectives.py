"""The collectives of the step in the timeline, one a line, in order of their start."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual import events
from textual.message import Message

from overlaptop.text import Unit, byte_count, percent
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, bold, dim, elided, on, pad
from overlaptop.tui.overview.totals_line import overlap_ink
from overlaptop.tui.timeline.lanes import Lanes, hidden_share
from overlaptop.tui.timeline.timeline import op_name
from overlaptop.tui.view import JobView
from overlaptop.wire.messages import CollectiveSpan

# Name, cells at least, whether figures align right, and the width of the widget from which it is shown.
_COLUMNS = (
    ("#", 4, True, 0),
    ("op", 16, False, 0),
    ("bytes", 9, True, 34),
    ("start", 10, True, 66),
    ("duration", 12, True, 48),
    ("hidden", 8, True, 0),
    ("call", 5, False, 78),
    ("group", 5, False, 90),
)
_OP, _GROUP = 1, 7
"""Those whose words may be longer."""
_MARGIN = _GAP = 2


class Collectives(JobView):
    """A list with a cursor; the timeline marks what it is on."""

    class CollectiveChosen(Message):
        """A line was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._first = 0

    def made_of(self) -> tuple[object, ...] | None:
        """The step and the cursor."""
        return (self.state.lanes and self.state.lanes.detail, self.state.collective)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """Header and the visible lines."""
        lanes = self.state.lanes
        if lanes is None:
            return []
        collectives = lanes.detail.collectives
        if not collectives:
            return [(dim("  no collective in this step"),)]
        unit = Unit.for_scale(lanes.detail.step_ns)
        chosen = self.state.collective
        room = height - 1
        # The last line counts those below, where there is room for more than that line.
        shown = room - 1 if 1 < room < len(collectives) else room
        at = min(chosen, len(collectives) - 1) if chosen is not None else self._first
        self._first = max(0, min(max(at - shown + 1, min(self._first, at)), len(collectives) - room))
        if self._first + room >= len(collectives):
            shown = room
        sizes = _sizes(collectives, width)
        lines = [_row(sizes, width, tuple((dim(_header(name, unit)),) for name, *_ in _COLUMNS))]
        for index in range(self._first, min(len(collectives), self._first + shown)):
            line = _row(sizes, width, _cells(lanes, index, unit), cursor=index == chosen)
            lines.append(on(line, "cursor") if index == chosen else line)
        if (more := len(collectives) - self._first - shown) > 0:
            lines.append((dim(f"  … {more} more"),))
        return lines

    def on_click(self, event: events.Click) -> None:
        """Choose the line."""
        lanes = self.state.lanes
        index = self._first + event.y - 1
        if lanes is not None and event.y > 0 and index < len(lanes.detail.collectives):
            self.post_message(self.CollectiveChosen(index))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel moves the cursor."""
        self._wheel(event, 1)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel moves the cursor."""
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, lines: int) -> None:
        event.stop()
        lanes = self.state.lanes
        if lanes is not None and lanes.detail.collectives:
            at = (self.state.collective if self.state.collective is not None else -1) + lines
            self.post_message(self.CollectiveChosen(min(max(at, 0), len(lanes.detail.collectives) - 1)))


def _header(name: str, unit: Unit) -> str:
    return f"{name} {unit.name}" if name in ("start", "duration") else name


def _cells(lanes: Lanes, index: int, unit: Unit) -> tuple[StyledLine, ...]:
    collective, share = lanes.detail.collectives[index], hidden_share(lanes, index)
    return (
        (dim(str(index)),),
        (bold(op_name(collective)),),
        (Segment(byte_count(collective.bytes)),),
        (Segment(unit.text(collective.start_ns)),),
        (bold(unit.text(collective.end_ns - collective.start_ns)),),
        (Segment(percent(share), overlap_ink(share)),),
        (dim("async" if collective.is_async else "sync"),),
        (dim(collective.group),),
    )


def _sizes(collectives: Sequence[CollectiveSpan], width: int) -> list[int]:
    """Cells of each column, 0: it is left out. What is left goes to the ops' names, then the groups'."""
    sizes = [size if width >= from_width else 0 for _, size, _, from_width in _COLUMNS]
    left = width - _MARGIN - sum(size + _GAP for size in sizes if size)
    names = [op_name(each) for each in collectives], [each.group for each in collectives]
    for at, words in zip((_OP, _GROUP), names, strict=True):
        more = min(left, max(map(cell_len, words)) - sizes[at]) if sizes[at] else 0
        sizes[at] += max(0, more)
        left -= max(0, more)
    return sizes


def _row(
    sizes: Sequence[int], width: int, cells: tuple[StyledLine, ...], *, cursor: bool = False
) -> StyledLine:
    line: list[Segment] = [Segment("▸ " if cursor else "  ", TextStyle("accent", bold=True))]
    for (_, _, right, _), size, cell in zip(_COLUMNS, sizes, cells, strict=True):
        if not size:
            continue
        cell = elided(cell, size)
        blank = size - sum(len(run.text) for run in cell)
        line += [Segment(" " * blank), *cell, Segment("  ")] if right else [*pad(cell, size), Segment("  ")]
    return elided(tuple(line), width)
