"""The collectives of the step in the timeline, one a line, in order of their start."""

from __future__ import annotations

from textual import events

from overlaptop.text import Unit, byte_count, percent
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import Segment, StyledLine, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.overview.totals_line import overlap_ink
from overlaptop.tui.timeline.lanes import Lanes, hidden_share
from overlaptop.tui.timeline.timeline import op_name
from overlaptop.tui.view import JobView

_COLUMNS = (
    Column("#", 4),
    Column("op", 16, right=False),
    Column("bytes", 9, shown_from=34),
    Column("start", 10, shown_from=66),
    Column("duration", 12, shown_from=48),
    Column("hidden", 8),
    Column("call", 5, right=False, shown_from=78),
    Column("group", 5, right=False, shown_from=90),
)


class Collectives(JobView):
    """A list with a cursor; the timeline marks what it is on."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self._first = 0

    def made_of(self) -> tuple[object, ...] | None:
        """The step and the cursor."""
        return (self.state.lanes and self.state.lanes.detail, self.state.collective)

    def draw(self, width: int, height: int) -> list[StyledLine]:
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
        words = {"op": map(op_name, collectives), "group": (each.group for each in collectives)}
        table = Table(_COLUMNS, width, words)
        lines = [table.header({name: f"{name} {unit.name}" for name in ("start", "duration")})]
        lines += [
            table.row(_cells(lanes, index, unit), cursor=index == chosen)
            for index in range(self._first, min(len(collectives), self._first + shown))
        ]
        if (more := len(collectives) - self._first - shown) > 0:
            lines.append((dim(f"  … {more} more"),))
        return lines

    async def on_click(self, event: events.Click) -> None:
        if event.y > 0:
            await self._choose(self._first + event.y - 1)

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        """Move the cursor."""
        at = self.state.collective
        await self._choose(max(0, direction + (at if at is not None else -1)))

    async def _choose(self, index: int) -> None:
        lanes = self.state.lanes
        if lanes is not None and index < len(lanes.detail.collectives):
            await self.screen.run_action(f"screen.choose_collective({index})")


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
