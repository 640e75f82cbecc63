"""The collectives of the step in the timeline, one a line, in order of their start."""

from __future__ import annotations

from textual import events
from textual.message import Message

from overlaptop.tui.ink import BOLD, DIM, Ink, Line, Run, elided, on, pad
from overlaptop.tui.lanes import Lanes, hidden_share
from overlaptop.tui.state import ViewState
from overlaptop.tui.text import Unit, byte_count, percent
from overlaptop.tui.widgets.line_view import LineView
from overlaptop.tui.widgets.timeline import op_name
from overlaptop.tui.widgets.totals_line import overlap_ink

# Name, cells, whether figures align right, and the width of the widget from which it is shown.
_COLUMNS = (
    ("#", 4, True, 0),
    ("op", 16, False, 0),
    ("bytes", 9, True, 34),
    ("start", 10, True, 66),
    ("duration", 12, True, 48),
    ("hidden", 8, True, 0),
    ("call", 5, False, 78),
    ("group", 40, False, 90),
)


class Collectives(LineView):
    """A list with a cursor; the timeline marks what it is on."""

    class Chosen(Message):
        """A line was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, state: ViewState, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(state, id=id)
        self._first = 0

    def made_of(self) -> tuple[object, ...] | None:
        """The step and the cursor."""
        return (self.state.lanes and self.state.lanes.detail, self.state.collective)

    def draw(self, width: int, height: int) -> list[Line]:
        """Header and the lines in sight."""
        lanes = self.state.lanes
        if lanes is None:
            return []
        collectives = lanes.detail.collectives
        if not collectives:
            return [(Run("  no collective in this step", DIM),)]
        unit = Unit.for_scale(lanes.detail.step_ns)
        chosen = self.state.collective
        room = height - 1
        at = min(chosen, len(collectives) - 1) if chosen is not None else self._first
        self._first = max(0, min(max(at - room + 1, min(self._first, at)), len(collectives) - room))
        lines = [_row(width, tuple((Run(_header(name, unit), DIM),) for name, *_ in _COLUMNS))]
        for index in range(self._first, min(len(collectives), self._first + room)):
            line = _row(width, _cells(lanes, index, unit), cursor=index == chosen)
            lines.append(on(line, "cursor") if index == chosen else line)
        return lines

    def on_click(self, event: events.Click) -> None:
        """Choose the line."""
        lanes = self.state.lanes
        index = self._first + event.y - 1
        if lanes is not None and event.y > 0 and index < len(lanes.detail.collectives):
            self.post_message(self.Chosen(index))

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
            self.post_message(self.Chosen(min(max(at, 0), len(lanes.detail.collectives) - 1)))


def _header(name: str, unit: Unit) -> str:
    return f"{name} {unit.name}" if name in ("start", "duration") else name


def _cells(lanes: Lanes, index: int, unit: Unit) -> tuple[Line, ...]:
    collective, share = lanes.detail.collectives[index], hidden_share(lanes, index)
    return (
        (Run(str(index), DIM),),
        (Run(op_name(collective), BOLD),),
        (Run(byte_count(collective.bytes)),),
        (Run(unit.text(collective.start_ns)),),
        (Run(unit.text(collective.end_ns - collective.start_ns), BOLD),),
        (Run(percent(share), overlap_ink(share)),),
        (Run("async" if collective.is_async else "sync", DIM),),
        (Run(collective.group, DIM),),
    )


def _row(width: int, cells: tuple[Line, ...], *, cursor: bool = False) -> Line:
    line: list[Run] = [Run("▸ " if cursor else "  ", Ink("accent", bold=True))]
    for (_, size, right, from_width), cell in zip(_COLUMNS, cells, strict=True):
        if width < from_width:
            continue
        cell = elided(cell, size)
        blank = size - sum(len(run.text) for run in cell)
        line += [Run(" " * blank), *cell, Run("  ")] if right else [*pad(cell, size), Run("  ")]
    return elided(tuple(line), width)
