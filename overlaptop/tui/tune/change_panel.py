"""How the newest change of a knob goes, and the steps before and after it."""

from __future__ import annotations

from overlaptop.fleet.records import BOUNDS
from overlaptop.text import UNKNOWN, bounded, duration, percent, plural
from overlaptop.tui.draw.segments import (
    BOLD,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    elided,
    fit,
    paragraph,
)
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.compared import BeforeAfter
from overlaptop.tui.model.knob_editor import KnobChange
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.widgets.view import JobView

MOST_LINES = 4
_GLYPHS = {"pending": ("◌", "warning"), "changed": ("●", "good"), "failed": ("✗", "error")}


class ChangeLine(JobView):
    """Of the newest one, whoever asked for it. Empty where nothing was changed."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        change = self.state.change
        return [] if change is None else change_lines(change, width)[:height]

    def full_height(self, width: int) -> int:
        change = self.state.change
        return 0 if change is None else len(change_lines(change, width))


def change_lines(change: KnobChange, width: int, right: Item | None = None) -> list[StyledLine]:
    """From what to what, how far it is, and who asked, where that was not here; at most MOST_LINES.

    ``right``: for the right edge of the first line, where there is room.
    """
    glyph, color = _GLYPHS[change.state]
    style = TextStyle(color, bold=True)
    mark, values = Segment(f" {glyph} ", style), change.values_in_words
    by = [Item((dim("by "), Segment(change.by)), 2)] if change.by else []
    rights = [right] if right is not None else []
    if values and len(values) + len(change.words) + len(change.by) + 15 > width:
        head = fit([Item((mark, bold(values))), *by], rights, width)
        return [head, *paragraph(change.words, width, style, indent=3, rows=MOST_LINES - 1)]
    if not values and len(change.words) + 4 > width:
        first, *more = paragraph(change.words, width, style, indent=3, rows=MOST_LINES)
        return [(mark, *first[1:]), *more]
    status = Segment(change.words, TextStyle(color, bold=change.state != "changed"))
    line = (mark, bold(values), Segment("  "), status) if values else (mark, status)
    return [fit([Item(line), *by], rights, width)]


TABLE_LINES = 4
"""A header and three figures."""
LEAST_LINES = 4
"""Of the table and what stands above it: with fewer it is one line."""
_WIDE = 70
"""Narrower than this it is one line as well."""


class ChangePanel(JobView):
    """How the newest change goes, and the steps before and after the newest one that was made."""

    def draw(self, width: int, height: int) -> list[StyledLine]:
        return panel_lines(self.state, width, height)


def wanted_lines(state: ViewState, width: int) -> int:
    """How many lines there are to show; 0: nothing, or it was hidden."""
    if state.panel_hidden or (state.change is None and state.compared is None):
        return 0
    head = len(change_lines(state.change, width)) if state.change is not None else 1
    return head + TABLE_LINES if state.compared is not None and width >= _WIDE else head


def panel_lines(state: ViewState, width: int, height: int) -> list[StyledLine]:
    """A table of the figures before and after, where there is height for it; else one line."""
    change, compared = state.change, state.compared
    if compared is None or height < LEAST_LINES:
        return _brief(change, compared, width, exact=state.exact)[:height]
    again = "A: try both in turn   " if compared.of_change and not state.readonly else ""
    hide = Item((dim(f"{again}d: hide "),), 1)
    if change is not None:
        lines = change_lines(change, width, hide)
    else:
        lines = [fit([Item((bold(f" {compared.title}"),))], [hide], width)]
    rows = _rows(compared, exact=state.exact)
    sides = [
        f"{words}, {plural(steps, 'step')}"
        for words, steps in zip((compared.was, compared.becomes), compared.steps, strict=True)
    ]
    columns = [Column(title, 9, right=at > 0) for at, title in enumerate(("", *sides, "change"))]
    words = {column.title: [column.title, *(row[at] for row in rows)] for at, column in enumerate(columns)}
    table = Table(columns, width, words)
    lines.append(elided(table.header(), width))
    for name, before, after, by in rows:
        lines.append(table.row(((dim(name),), (Segment(before),), (Segment(after, BOLD),), (Segment(by),))))
    return lines[:height]


def _brief(
    change: KnobChange | None, compared: BeforeAfter | None, width: int, *, exact: bool
) -> list[StyledLine]:
    """The figures in a line, once a change was made; until then how it goes."""
    if compared is None or (change is not None and change.state != "changed"):
        return change_lines(change, width) if change is not None else []
    head = f" {compared.was} → {compared.becomes}" if compared.of_change else f" {compared.title}"
    items = [Item((bold(head),))]
    for at, (name, before, after, by) in enumerate(_rows(compared, exact=exact)):
        items.append(Item((dim(f"{name} "), Segment(f"{before} → {after} {by}".rstrip())), at + 1))
    return [fit(items, [], width, "  ")]


def _rows(compared: BeforeAfter, *, exact: bool) -> list[tuple[str, str, str, str]]:
    """Name, before, after and the change of each figure."""
    before, after = compared.before, compared.after
    overlaps = [
        bounded(percent(each), BOUNDS["overlap"], exact=exact) for each in (before.overlap, after.overlap)
    ]
    exposed = [
        bounded(duration(each), BOUNDS["exposed_ns"], exact=exact)
        for each in (before.exposed_ns, after.exposed_ns)
    ]
    points = ""
    if before.overlap is not None and after.overlap is not None:
        points = f"{100 * (after.overlap - before.overlap):+.1f} points"
    share = "other work" if not compared.same_work else _share(before.step_ns, after.step_ns)
    return [
        ("step time", duration(before.step_ns), duration(after.step_ns), share),
        ("overlap", overlaps[0], overlaps[1], points),
        ("exposed", exposed[0], exposed[1], _share(before.exposed_ns, after.exposed_ns)),
    ]


def _share(before: float | None, after: float | None) -> str:
    """``-3.1 %``."""
    return f"{100 * (after / before - 1):+.1f} %" if before and after is not None else UNKNOWN
