"""The collectives of the timeline's step, one per line, by start."""

from textual import events

from overlaptop.text import UNKNOWN, Unit, byte_count, percent
from overlaptop.tui.draw.segments import BOLD, DIM, TEXT, Segment, StyledLine, bold, dim
from overlaptop.tui.draw.table import Column, Table, scrolled
from overlaptop.tui.model.lanes import Lanes
from overlaptop.tui.model.parts import overlap_style
from overlaptop.tui.timeline.timeline import op_name
from overlaptop.tui.widgets.view import JobView

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
_WAIT_COLUMNS = (
    Column("#", 4),
    Column("op", 16, right=False),
    Column("bytes", 9, shown_from=85),
    Column("start", 10, shown_from=112),
    Column("duration", 11, shown_from=48),
    Column("waiting", 10),
    Column("transfer", 11, shown_from=98),
    Column("late rank", 9, shown_from=72),
    Column("hidden", 7, shown_from=60),
    Column("call", 5, right=False, shown_from=119),
    Column("group", 5, right=False, shown_from=126),
)
"""Used if some collective of the step has a wait/transfer breakdown."""
_TIMES = ("start", "duration", "waiting", "transfer")


class Collectives(JobView):
    """A list with a cursor; the timeline marks the selected one."""

    _first = 0

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return 1 + max(1, self.state.most_collectives)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lanes, selected = self.state.lanes, self.state.collective
        if lanes is None:
            return []
        collectives, space = lanes.detail.collectives, height - 1
        if not collectives:
            return [(dim("  no collective in this step"),)]
        unit = Unit.for_scale(lanes.detail.step_ns)
        # The last line counts hidden ones, if there is space for more than that line.
        shown = space - 1 if 1 < space < len(collectives) else space
        at = self._first if selected is None else selected
        self._first = scrolled(self._first, at, len(collectives), shown)
        if self._first + space >= len(collectives):
            self._first, shown = max(0, len(collectives) - space), space
        words = {"op": map(op_name, collectives), "group": (each.group for each in collectives)}
        has_breakdown = any(each and not each.not_attributed for each in lanes.matched)
        columns = _WAIT_COLUMNS if has_breakdown else _COLUMNS
        table = Table(columns, width, words)
        names = {name: f"{name} {unit.name}" for name in _TIMES}
        lines = [table.header(names)]
        for index in range(len(collectives))[self._first : self._first + shown]:
            cells = _cells(lanes, index, unit)
            lines.append(table.row([cells[each.title] for each in columns], cursor=index == selected))
        if (more := len(collectives) - self._first - shown) > 0:
            lines.append((dim(f"  … {more} more"),))
        return lines

    async def on_click(self, event: events.Click) -> None:
        if event.y > 0:
            await self._select(self._first + event.y - 1)

    async def wheel(self, direction: int, x: int) -> None:  # noqa: ARG002
        at = self.state.collective
        await self._select(max(0, direction + (at if at is not None else -1)))

    async def _select(self, index: int) -> None:
        lanes = self.state.lanes
        if lanes is not None and index < len(lanes.detail.collectives):
            await self.screen.run_action(f"screen.select_collective({index})")


def _cells(lanes: Lanes, index: int, unit: Unit) -> dict[str, StyledLine]:
    collective, share, rank = lanes.detail.collectives[index], lanes.hidden_share(index), lanes.detail.rank
    matched = lanes.matched[index]
    wait_ns, transfer_ns = (matched.wait_ns(rank), matched.transfer_ns(rank)) if matched else (None, None)
    late = matched.late_rank if matched else None
    return {
        "#": (dim(str(index)),),
        "op": (bold(op_name(collective)),),
        "bytes": (Segment(byte_count(collective.bytes)),),
        "start": (Segment(unit.text(collective.start_ns)),),
        "duration": (bold(unit.text(collective.end_ns - collective.start_ns)),),
        "waiting": (Segment(unit.text(wait_ns), DIM if wait_ns is None else TEXT),),
        "transfer": (Segment(unit.text(transfer_ns), DIM if transfer_ns is None else TEXT),),
        "late rank": (
            dim(UNKNOWN) if late is None else Segment(str(late), BOLD if late == rank else TEXT),
        ),
        "hidden": (Segment(percent(share), overlap_style(share)),),
        "call": (dim("async" if collective.is_async else "sync"),),
        "group": (dim(collective.group),),
    }
