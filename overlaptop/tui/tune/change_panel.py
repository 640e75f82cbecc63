"""How the newest change of a knob goes, and what it brought, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from overlaptop.fleet.records import BOUNDS
from overlaptop.text import UNKNOWN, Unit, plural, shortened
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    elided,
    fit,
    pad,
    paragraph,
)
from overlaptop.tui.state import ViewState
from overlaptop.tui.tune.knob_editor import KnobChange
from overlaptop.tui.view import JobView

if TYPE_CHECKING:
    from overlaptop.stats.comparison import Comparison, Quantity
    from overlaptop.stats.noise import Estimate

MOST_LINES = 4
_GLYPHS = {"pending": ("◌", "warning"), "changed": ("●", "good"), "failed": ("✗", "error")}


class ChangeLine(JobView):
    """Of the newest one, whoever asked for it and be it a search. Empty where nothing was changed."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        change = self.state.newest_change
        return [] if change is None else change_lines(change, width)[:height]

    def full_height(self, width: int) -> int:
        change = self.state.newest_change
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


TABLE_LINES = 7
"""A header, five figures, and what they mean."""
LEAST_LINES = 4
"""Of the table and what stands above it: with fewer it is one line."""
_WIDE = 78
"""Narrower than this it is one line as well."""
_FIGURE_CELLS, _VERDICT_CELLS = 16, 36


class ChangePanel(JobView):
    """How the newest change goes, and what the newest one that was made has brought."""

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
        return _brief(change, compared, width, state.alternation)[:height]
    again = "A: back and again   " if compared.command and not state.readonly else ""
    hide = Item((dim(f"{again}d: hide "),), 1)
    if change is not None:
        lines = change_lines(change, width, hide)
    else:
        lines = [fit([Item((bold(f" {compared.title}"),))], [hide], width)]
    header = _header(compared, width)
    rows = [
        (each.title, *(_figure(each, side, exact=state.exact) for side in (each.before, each.after)))
        for each in compared.quantities
    ]
    sizes = [2 + max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    summary = (dim("  "), *_in_short(compared))
    lines.append(_row(header, sizes, (DIM, DIM, DIM), summary, width))
    for row, quantity in zip(rows, compared.quantities, strict=True):
        verdict = f"{_glyph(quantity)} {_verdict(quantity, width - sum(sizes) - 5)}"
        lines.append(_row(row, sizes, (DIM, TEXT, BOLD), (Segment(verdict, _style(quantity)),), width))
    lines.append(_meanings(width, state.alternation))
    return lines[:height]


def _verdict(quantity: Quantity, room: int) -> str:
    """In so many cells: with fewer words, then without its interval."""
    # Where there is a quantity numpy is there too.
    from overlaptop.stats.noise import NO_DIFFERENCE

    if quantity.is_other_work:
        return quantity.verdict.partition(":")[0]  # the reason stands above
    short = quantity.verdict.replace(NO_DIFFERENCE, "within noise")
    bare = short.partition(" (")[0]
    return next((words for words in (quantity.verdict, short) if len(words) <= room), bare)


def _meanings(width: int, alternation: str) -> StyledLine:
    beyond = (
        Segment("better", TextStyle("good")),
        Segment(" worse", TextStyle("bad")),
        dim(" beyond noise"),
    )
    items = [
        Item((dim("   ± half of the steps"),)),
        Item((dim("(a to b) 95 % interval"),), 1),
        Item(beyond, 2),
        Item((dim("≈ within noise"),), 3),
    ]
    return fit(items, [Item((Segment(f"{alternation} "),), 1)] if alternation else [], width)


def _row(
    words: Sequence[str], sizes: list[int], styles: Sequence[TextStyle], verdict: StyledLine, width: int
) -> StyledLine:
    line: list[Segment] = [Segment("   ")]
    for word, size, style in zip(words, sizes, styles, strict=True):
        line += pad((Segment(word, style),), size)
    return elided((*line, *verdict), width)


def _brief(
    change: KnobChange | None, compared: Comparison | None, width: int, alternation: str
) -> list[StyledLine]:
    """What a change brought, in a line, once it was made; until then how it goes."""
    if compared is None or (change is not None and change.command != compared.command):
        return change_lines(change, width) if change is not None else []
    step = compared.quantities[0]
    glyph = Segment(f" {_glyph(step)} ", _style(step))
    head = f"{compared.was} → {compared.becomes}" if compared.command else compared.title
    verdict: StyledLine = (dim("step "), Segment(_so_far(step), _style(step)))
    if step.is_other_work:
        verdict = _in_short(compared)
    items = [Item((glyph, bold(head))), Item(verdict)]
    if alternation:
        items.append(Item((Segment(alternation),), 3))
    for each in compared.quantities[1:3]:
        sides = (_figure(each, side, spread=False) for side in (each.before, each.after))
        items.append(Item((dim(f"{each.title} "), Segment(" → ".join(sides))), 2))
    return [fit(items, [], width, "  ")]


def _in_short(compared: Comparison) -> StyledLine:
    """Whether the step time differs by more than noise, which is what a change is made for."""
    step = compared.quantities[0]
    if step.is_other_work:
        return (Segment(step.verdict.partition(": ")[2], TEXT),)
    if step.difference is None:
        words = _so_far(step)
    else:
        words = "more than noise" if step.difference.beyond_noise else "no more than noise"
        if compared.changes > 1:
            words += f", by {compared.changes} changes"
    return (dim("step time: "), Segment(words, _style(step)))


def _so_far(step: Quantity) -> str:
    """The verdict; before the first step after the change there is none."""
    return "measuring ..." if step.before is not None and step.after is None else step.verdict


def _header(compared: Comparison, width: int) -> tuple[str, str, str]:
    """What the two stretches are, and of how many steps where there is room: verdicts come first."""
    step = compared.quantities[0]
    titles = 2 + max(len(each.title) for each in compared.quantities)
    room = max(_FIGURE_CELLS, (width - 3 - titles - _VERDICT_CELLS) // 2 - 2)
    sides = []
    for words, estimate in ((compared.was, step.before), (compared.becomes, step.after)):
        counted = f"{words}, {plural(estimate.steps if estimate is not None else 0, 'step')}"
        sides.append(counted if len(counted) <= room else shortened(words, room))
    return "", sides[0], sides[1]


def _figure(
    quantity: Quantity, estimate: Estimate | None, *, exact: bool = True, spread: bool = True
) -> str:
    """``47.60 ±0.31 ms``: the centre, and how far half of the steps are from their middle."""
    if estimate is None:
        return UNKNOWN
    most = max(each.centre for each in (quantity.before, quantity.after) if each is not None)
    unit = Unit.for_scale(round(most))
    name = {"overlap": " %", "collectives": ""}.get(quantity.name, f" {unit.name}")

    def told(figure: float) -> str:
        if quantity.name == "overlap":
            return f"{100 * figure:.1f}"
        return _counted(figure) if quantity.name == "collectives" else unit.text(round(figure))

    sign = "" if exact else BOUNDS.get(quantity.name, "")
    around = f" ±{told(estimate.spread)}" if spread else ""
    return f"{sign}{told(estimate.centre)}{around}{name}"


def _counted(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _glyph(quantity: Quantity) -> str:
    """Also without colours: longer or shorter beyond noise, no difference, or not known."""
    apart = quantity.difference
    if quantity.is_other_work:
        return "·"
    if apart is None:
        return "?"
    if not apart.beyond_noise:
        return "≈"
    return "▲" if apart.change > 0 else "▼"


def _style(quantity: Quantity) -> TextStyle:
    apart = quantity.difference
    if apart is None or not apart.beyond_noise:
        return DIM
    if quantity.better is None:
        return TEXT
    return TextStyle("good" if quantity.better else "bad", bold=True)
