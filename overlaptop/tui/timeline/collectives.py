"""The collectives of the timeline's step, one per line, by start."""

from collections.abc import Mapping, Sequence

from overlaptop.text import UNKNOWN, Unit, byte_count, percent
from overlaptop.tui.draw.segments import BOLD, DIM, TEXT, Segment, StyledLine, bold, dim
from overlaptop.tui.draw.table import Cell, Column, Table
from overlaptop.tui.model.lanes import Lanes
from overlaptop.tui.model.parts import overlap_style
from overlaptop.tui.timeline.timeline import op_name
from overlaptop.tui.widgets.view import RowList

_COLUMNS: tuple[Column[Mapping[str, Cell]], ...] = (
    Column("#", 4),
    Column("op", 16, right=False, grows=True),
    Column("bytes", 9, priority=5),
    Column("start", 10, priority=7),
    Column("duration", 11, priority=1),
    Column("waiting", 10),
    Column("transfer", 11, priority=6),
    Column("late rank", 9, priority=4),
    Column("hidden", 7, priority=2),
    Column("call", 5, right=False, priority=8),
    Column("group", 5, right=False, grows=True, priority=9),
)
_TIMES = ("start", "duration", "waiting", "transfer")
_OF_BREAKDOWN = ("waiting", "transfer", "late rank")


class Collectives(RowList[int]):
    """A list with a cursor, once a collective is selected; the timeline marks that one."""

    above = 1
    opens = "screen.fit_collective"

    @property
    def rows(self) -> Sequence[int]:
        lanes = self.state.lanes
        return range(len(lanes.keys)) if lanes is not None else ()

    def key(self, row: int) -> object:
        return row

    def put(self, row: int) -> None:
        self.state.select_collective(row)

    def move(self, lines: int) -> None:
        self.state.move_collective(lines)

    def full_height(self, width: int) -> int:  # noqa: ARG002
        return 1 + max(1, self.state.most_collectives)

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lanes = self.state.lanes
        if lanes is None:
            return []
        collectives = lanes.detail.collectives
        if not collectives:
            return [(dim("  no collective in this step"),)]
        self.cursor = self.state.collective
        unit = Unit.for_scale(lanes.detail.step_ns)
        has_breakdown = any(each and not each.not_attributed for each in lanes.matched)
        columns = [each for each in _COLUMNS if has_breakdown or each.title not in _OF_BREAKDOWN]
        growing: list[dict[str, Cell]] = [
            {"op": op_name(each), "group": each.group} for each in collectives
        ]
        table = Table(columns, width, growing)

        def drawn(row: int, _at_first: bool) -> StyledLine:
            return table.row(_cells(lanes, row, unit), cursor=row == self.cursor)

        header = table.header({name: f"{name} {unit.name}" for name in _TIMES})
        return [header, *self.listed(self.rows, height - 1, drawn)]


def _cells(lanes: Lanes, index: int, unit: Unit) -> dict[str, Cell]:
    collective, share, rank = lanes.detail.collectives[index], lanes.hidden_share(index), lanes.detail.rank
    matched = lanes.matched[index]
    wait_ns, transfer_ns = (matched.wait_ns(rank), matched.transfer_ns(rank)) if matched else (None, None)
    late = matched.late_rank if matched else None
    return {
        "#": dim(str(index)),
        "op": bold(op_name(collective)),
        "bytes": byte_count(collective.bytes),
        "start": unit.text(collective.start_ns),
        "duration": bold(unit.text(collective.end_ns - collective.start_ns)),
        "waiting": Segment(unit.text(wait_ns), DIM if wait_ns is None else TEXT),
        "transfer": Segment(unit.text(transfer_ns), DIM if transfer_ns is None else TEXT),
        "late rank": dim(UNKNOWN) if late is None else Segment(str(late), BOLD if late == rank else TEXT),
        "hidden": Segment(percent(share), overlap_style(share)),
        "call": dim("async" if collective.is_async else "sync"),
        "group": dim(collective.group),
    }
