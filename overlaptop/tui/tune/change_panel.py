"""The progress of the newest change of a knob, and the steps before and after it."""

from overlaptop.fleet.records import BOUNDS
from overlaptop.text import UNKNOWN, bounded, duration, percent, plural
from overlaptop.tui.draw.layout import Item, fit
from overlaptop.tui.draw.segments import Segment, StyledLine, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.earlier import KEPT_STEPS, BeforeAfter
from overlaptop.tui.model.knob_editor import KnobChange
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.widgets.change_line import change_lines
from overlaptop.tui.widgets.view import JobView

_TABLE_LINES = 4
_WIDE, _HIGH = 70, 24  # On smaller screens all is one line


class ChangePanel(JobView):
    """The newest change's progress, and the steps before and after the last completed one."""

    def full_height(self, width: int) -> int:
        change, compared = self.state.change, self.state.compared
        if self.state.panel_hidden or (change is None and compared is None):
            return 0
        head = len(change_lines(change, width)) if change is not None else 1
        if compared is None or width < _WIDE or self.app.size.height < _HIGH:
            return head
        return head + _TABLE_LINES

    def draw(self, width: int, height: int) -> list[StyledLine]:
        return panel_lines(self.state, width, height)


def panel_lines(state: ViewState, width: int, height: int) -> list[StyledLine]:
    """Return a table of the figures before and after if the height allows, else one line."""
    change, compared = state.change, state.compared
    if compared is None or height < _TABLE_LINES:
        return _brief(change, compared, width, exact=state.exact)[:height]
    drift = "drift included" if compared.of_change else ""
    again = f"{drift}{'' if state.readonly else '; A: test'}   " if drift else ""
    hide = Item((dim(f"{again}d: hide "),), 1)
    if change is not None:
        lines = change_lines(change, width, hide)
    else:
        lines = [fit([Item((bold(f" {compared.title}"),))], [hide], width)]
    before, after = (
        f"{side}, {f'newest {KEPT_STEPS} steps' if steps > KEPT_STEPS else plural(steps, 'step')}"
        for side, steps in (
            (compared.old, compared.before.steps_done),
            (compared.new, compared.after.steps_done),
        )
    )
    columns: list[Column[tuple[str, ...]]] = [
        Column("", 9, lambda row: dim(row[0]), right=False, grows=True),
        Column(before, 9, lambda row: row[1], grows=True),
        Column(after, 9, lambda row: bold(row[2]), grows=True),
        Column("change", 9, lambda row: row[3], grows=True),
    ]
    rows = _figures(compared, exact=state.exact)
    table = Table(columns, width, rows)
    return [*lines, table.header(), *map(table.row, rows)][:height]


def _brief(
    change: KnobChange | None, compared: BeforeAfter | None, width: int, *, exact: bool
) -> list[StyledLine]:
    """Return the figures in a line once a change is complete; until then its progress."""
    if compared is None or (change is not None and change.state != "changed"):
        return change_lines(change, width) if change is not None else []
    head = f" {compared.old} → {compared.new}" if compared.of_change else f" {compared.title}"
    items = [Item((bold(head),))]
    for at, (name, before, after, by) in enumerate(_figures(compared, exact=exact)):
        items.append(Item((dim(f"{name} "), Segment(f"{before} → {after} {by}".rstrip())), at + 1))
    return [fit(items, [], width, "  ")]


def _figures(compared: BeforeAfter, *, exact: bool) -> list[tuple[str, ...]]:
    before, after = sides = compared.before, compared.after
    overlaps = [bounded(percent(each.overlap), BOUNDS["overlap"], exact=exact) for each in sides]
    exposed = [bounded(duration(each.exposed_ns), BOUNDS["exposed_ns"], exact=exact) for each in sides]
    points = ""
    if before.overlap is not None and after.overlap is not None:
        points = f"{100 * (after.overlap - before.overlap):+.1f} points"
    share = _share(before.step_ns, after.step_ns) if compared.same_work else "other work"
    return [
        ("step time", duration(before.step_ns), duration(after.step_ns), share),
        ("overlap", *overlaps, points),
        ("exposed", *exposed, _share(before.exposed_ns, after.exposed_ns)),
    ]


def _share(before: float | None, after: float | None) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before and after is not None else UNKNOWN
