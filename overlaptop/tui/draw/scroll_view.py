"""A view of more lines than fit, moved by keys and by the wheel."""

from __future__ import annotations

from textual import events

from overlaptop.tui.draw.line_view import LineView
from overlaptop.tui.state import ViewState

WHEEL_LINES = 3


class ScrollView(LineView):
    """Draws from the line `first` on; `draw` keeps that within what there is."""

    def __init__(self, state: ViewState) -> None:
        super().__init__(state)
        self.first = 0

    def scroll_lines(self, lines: int) -> None:
        """Down, or up where negative."""
        self.first = max(0, self.first + lines)
        self.redraw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """The wheel."""
        event.stop()
        self.scroll_lines(WHEEL_LINES)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """The wheel."""
        event.stop()
        self.scroll_lines(-WHEEL_LINES)
