"""Lines of the overview: the costliest problem, the totals, and the legend."""

import re

from overlaptop.findings.first_line import bound_by
from overlaptop.fleet.knobs import NOT_ALLOWED
from overlaptop.fleet.snapshot import Window
from overlaptop.fleet.trouble import trouble_of
from overlaptop.fleet.waits import WORTH_SHARE
from overlaptop.report.figures import exposed_text, totals_text, window_text
from overlaptop.report.knobs import present_words, short_name
from overlaptop.report.order import stalls_apart
from overlaptop.report.who_is_late import UNTIL_THEN, Kind, who_is_late, why_unmeasured
from overlaptop.text import UNKNOWN, duration, plural, runs_of, shortened
from overlaptop.tui.draw.layout import Item, fit, joined, line_width, wrap
from overlaptop.tui.draw.segments import BOLD, BOLD_WARNING, DIM, KEY, Segment, StyledLine, TextStyle, dim
from overlaptop.tui.model.earlier import settings
from overlaptop.tui.model.parts import (
    COMPUTE,
    FUSED,
    HIDDEN_WAITING,
    IDLE,
    LEGEND,
    PHASES,
    WAITING,
    overlap_style,
)
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.widgets.view import JobView

_WIDE_FIRST_LINE = 90
_REASON_CHARS = 36
_HIGH = 16
_WIDE_TOTALS, _WIDER = 80, 120
"""Screen widths for the parts of a figure, and for all words about the window."""
_PARTS_CELLS = len("= waiting 12.3 + transfer 12.3")
_MOST_NAMED = 4  # Most ranks that are listed; more are counted


class FirstLineView(JobView):
    """One line; at its right end the key that opens its explanation."""

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        state = self.state
        # Findings are not about a past step.
        found = (state.findings or ()) if state.past_step is None else ()
        is_of_step = state.past_step is not None or (state.paused_at_ns and state.window is Window.STEP)
        said = who_is_late(state.snapshot) if is_of_step else state.first_line
        if said is None:
            return []
        least_ns = WORTH_SHARE * (state.snapshot.totals.step_ns or 0)
        is_told = said.warns or said.kind is Kind.FINDING
        is_minor = not is_told and all(not each.warns or (each.gain_ns or 0) <= least_ns for each in found)
        more = (
            plural(len(found), "minor finding" if is_minor else "finding")
            if width >= _WIDE_FIRST_LINE
            else ""
        )
        right = (dim(more), Segment(" f ▸ ", TextStyle("accent", bold=True))) if found else ()
        space = width - 4 - line_width(right)
        words = next((each for each in said.forms if len(each) <= space), said.forms[-1])
        style = BOLD_WARNING if said.warns else TextStyle()
        mark = Segment(" ! ", style) if said.warns else dim(" · ")
        return [fit([Item((mark, Segment(words, style)))], [Item(right, 1)] if right else [], width, " ")]

    async def on_click(self) -> None:
        await self.screen.run_action("app.findings")


class TotalsLine(JobView):
    """One line; two on a narrow screen with enough height."""

    def full_height(self, width: int) -> int:
        line = joined([item.line for item in total_items(self.state, width)], "  ")
        return 1 if line_width(line) < width or self.app.size.height < _HIGH else 2

    def draw(self, width: int, height: int) -> list[StyledLine]:
        items = total_items(self.state, width)
        gap = "   " if line_width(joined([item.line for item in items])) <= width - 1 else "  "
        return [(Segment(" "), *line) for line in wrap(items, width - 1, height, gap)]


def total_items(state: ViewState, width: int) -> list[Item]:
    snapshot, totals, is_wide = state.snapshot, state.snapshot.totals, width >= _WIDE_TOTALS
    figures, is_past = totals_text(totals, exact=state.exact), state.past_step is not None
    if not is_wide:
        figures["speed-up"] = figures["speed-up"].partition(",")[0]
    items: list[Item] = []

    def add(name: str, cells: int, style: TextStyle = BOLD, *more: Segment, priority: int = 0) -> None:
        # The widest figure's width, so that later items do not move.
        items.append(Item((dim(f"{name} "), Segment(f"{figures[name]:<{cells}}", style), *more), priority))

    if not is_past and totals.steps and trouble_of(snapshot):
        items.append(Item((dim(UNTIL_THEN.strip()),)))
    add("overlap", 8, overlap_style(totals.overlap, bold=True))
    parts: StyledLine = ()
    if totals.waits is not None and is_wide:
        parts = (dim(f" {exposed_text(totals.waits, totals.exposed_ns):<{_PARTS_CELLS}}"),)
    add("exposed", 7, BOLD, *parts)
    # Findings are not about a past step.
    if not is_past and (word := bound_by(snapshot, state.findings or (), state.first_line)):
        items.append(Item((Segment(word, BOLD),)))
    if "fused" in figures:
        add("fused", 8)
    if any(map(stalls_apart, snapshot.ranks)):
        add("stall", 7, priority=2)  # exposed says nearly the same
    items += _knob(state)
    if state.exact or totals.idle_ns is not None:
        add("idle", 8, DIM if totals.idle_ns is None else BOLD, priority=1)
    add("speed-up", 31 if is_wide else 5)
    items += _launching(state)
    if not state.exact and totals.idle_ns is None:
        add("idle", 8, DIM, priority=1)
    if totals.dropped:
        add("dropped", 1, BOLD_WARNING)
    items += _sampling(state) if is_wide else []
    if words := window_text(totals, brief=width < _WIDER):
        key = (Segment(" "), Segment("W", KEY)) if state.offers("app.window") and not is_past else ()
        items.append(Item((dim(words if is_wide else words.partition(" (")[0]), *key)))
    return items


def _knob(state: ViewState) -> list[Item]:
    if state.selected_knob is None or (state.starting and state.selected_knob.differs):
        return []
    knob, change = state.selected_knob.knob, state.change
    value = Segment(present_words(knob), BOLD)
    if state.past_step is not None:
        value = Segment(_value_in(state, state.past_step), BOLD)
    elif change is not None and change.state == "pending" and change.knob == knob.name and change.new:
        value = Segment(f"{change.old} → {change.new}".lstrip(), BOLD_WARNING)
    keys: StyledLine = (Segment(" "), Segment("[ ]", KEY))
    if not state.any_change or state.selected_knob.refusal:
        why = "read-only" if state.readonly else state.selected_knob.refusal
        if why == NOT_ALLOWED:
            why = "needs --control"
        elif not state.readonly and why:
            why = f"fixed: {shortened(re.sub(r'^rank [0-9]+: ', '', why), _REASON_CHARS)}"
        # Otherwise the job is over, or a trace: the header says so.
        keys = (dim(f" ({why})"),) if why else ()
    return [Item((dim(f"{short_name(knob.name)} "), value, *keys))]


def _value_in(state: ViewState, step: int) -> str:
    """Return the selected knob's value in this past step; a dash in a trial, or while it was changed."""
    steps = [view.last for view in state.snapshot.ranks if view.last is not None]
    values = {each.knob: each.value for each in settings(state.snapshot, step)}
    changing = any(each.trial or each.transitional for each in steps)
    return UNKNOWN if changing else values.get(state.selected_name, UNKNOWN)


def _launching(state: ViewState) -> list[Item]:
    """Return the CPU's lead over the GPU; nothing if no rank's source measures it."""
    totals = state.snapshot.totals
    if totals.launch_lead_ns is None:
        return []
    name = "least lead " if totals.ranks > 1 else "lead "
    line: StyledLine = (dim(name), Segment(f"{duration(totals.launch_lead_ns):<7}", BOLD))
    if bound := totals.launch_bound:
        on = runs_of(bound) if len(bound) <= _MOST_NAMED else f"{len(bound)} of {len(state.snapshot.ranks)}"
        everywhere = len(bound) == len(state.snapshot.ranks)
        line = (*line, Segment(f" launch-bound{'' if everywhere else f' on rank {on}'}", BOLD_WARNING))
    return [Item(line)]


def _sampling(state: ViewState) -> list[Item]:
    """Return how often steps are measured; nothing if that is not decided, or lines above say why not."""
    ranks = state.snapshot.ranks
    every = max((view.info.detail_every for view in ranks if view.info is not None), default=0)
    told = every and state.snapshot.totals.exposed_ns is None and why_unmeasured(ranks)
    if state.starting or told or all(view.info is None for view in ranks):
        return []
    words = {0: "phases only", 1: "every step measured"}
    return [Item((dim(words.get(every, f"1 of {every} steps measured")),), 3)]


class Legend(JobView):
    """One line."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        narrow, waits = width < 70, self.state.waits
        absent = [COMPUTE] if self.state.compute is PHASES else [PHASES]
        if self.state.compute is PHASES:
            absent.append(IDLE)  # it is not seen
        if waits is None or not waits.times:
            absent.append(WAITING)
        if not self.state.snapshot.totals.fused_ns:
            absent.append(FUSED)
        items = []
        for part in (each for each in LEGEND if each not in absent):
            word = part.word.removesuffix(" only") if narrow else f" {part.word}"
            shades = (HIDDEN_WAITING, part) if part is WAITING else (part,) * (1 if narrow else 2)
            swatch = [Segment("█", TextStyle(each.key, each.key)) for each in shades]
            items.append(Item((*swatch, dim(word)), 1))
        right = []
        if words := self.state.filter.words:
            of = f"{len(self.state.rows)} of {len(self.state.snapshot.ranks)} ranks "
            right.append(Item((Segment(f"/{words}  {of}", TextStyle("accent")),)))
        items[0] = items[0]._replace(line=(Segment(" "), *items[0].line))
        return [fit(items, right, width, " " if narrow else "   ")]
