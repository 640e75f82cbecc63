"""Lines of the overview: the costliest problem, the totals, and the legend."""

import re
from collections.abc import Sequence

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
from overlaptop.tui.draw.segments import (
    BOLD,
    BOLD_WARNING,
    DIM,
    KEY,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
)
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
SPARE = 8
"""Columns that must be free before a longer form returns."""
_REASON_CHARS = 36
_HIGH = 16
_WIDE_TOTALS, _WIDER = 80, 120
"""Screen widths for the parts of a figure, and for all words about the window."""
_PARTS_CELLS = len("= waiting 12.3 + transfer 12.3")
_MOST_NAMED = 4
"""Most ranks that are listed; more are counted."""


class FirstLineView(JobView):
    """One line; at its right end the key that opens its explanation."""

    _form, _right, _line = 0, 0, object()
    """The form drawn last, the widest right end so far, and their line."""

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
        words = self._fitting(said.forms, width, line_width(right), (width, said.key))
        style = BOLD_WARNING if said.warns else TextStyle()
        mark = Segment(" ! ", style) if said.warns else Segment(" · ", DIM)
        return [fit([Item((mark, Segment(words, style)))], [Item(right, 1)] if right else [], width, " ")]

    def _fitting(self, forms: Sequence[str], width: int, right: int, line: object) -> str:
        """Return the first form that fits. A longer form than before returns only with SPARE columns left:
        a figure with another digit must not change the sentence.
        """
        if self._line != line:
            self._form = self._right = 0
        self._right, before = max(right, self._right), self._form
        space = width - 4 - self._right
        spare = [SPARE if at < before else 0 for at in range(len(forms))]
        fits = (at for at, each in enumerate(forms) if len(each) + spare[at] <= space)
        self._form, self._line = next(fits, len(forms) - 1), line
        return forms[self._form]

    async def on_click(self) -> None:
        await self.screen.run_action("app.findings")


class TotalsLine(JobView):
    """One line; two on a narrow screen with enough height."""

    def full_height(self, width: int) -> int:
        line = joined([item.line for item in total_items(self.state, width)], "  ")
        return 1 if line_width(line) < width or self.app.size.height < _HIGH else 2

    def draw(self, width: int, height: int) -> list[StyledLine]:
        items = total_items(self.state, width)
        wide = joined([item.line for item in items])
        gap = "   " if line_width(wide) <= width - 1 else "  "
        lines = wrap(items, width - 1, height, gap)
        return [(Segment(" "), *line) for line in lines]


def total_items(state: ViewState, width: int) -> list[Item]:
    """Return the totals as figures with their names, for a screen of that width."""
    totals, ranks = state.snapshot.totals, state.snapshot.ranks
    figures = totals_text(totals, exact=state.exact)

    def item(name: str, figure: str, cells: int, style: TextStyle = BOLD, *more: Segment) -> Item:
        # The widest figure's width, so that later items do not move.
        return Item((dim(f"{name} "), Segment(f"{figure:<{cells}}", style), *more))

    stall = item("stall", figures["stall"], 7)._replace(priority=2)  # exposed says nearly the same
    seen = state.exact or totals.idle_ns is not None
    idle = item("idle", figures["idle"], 8, DIM if totals.idle_ns is None else BOLD)._replace(priority=1)
    speed_up = item("speed-up", figures["speed-up"], 31)
    if width < _WIDE_TOTALS:
        speed_up = item("speed-up", figures["speed-up"].partition(",")[0], 5)
    return [
        *_until_then(state),
        item("overlap", figures["overlap"], 8, overlap_style(totals.overlap, bold=True)),
        item("exposed", figures["exposed"], 7, BOLD, *_exposed_parts(state, width)),
        *_bound(state),
        *([item("fused", figures["fused"], 8)] if "fused" in figures else []),
        *([stall] if any(map(stalls_apart, ranks)) else []),
        *_knob(state),
        *([idle] if seen else []),
        speed_up,
        *_launching(state),
        *([] if seen else [idle]),
        *([item("dropped", figures["dropped"], 1, BOLD_WARNING)] if totals.dropped else []),
        *(_sampling(state) if width >= _WIDE_TOTALS else []),
        *_rule(state, width),
    ]


def _until_then(state: ViewState) -> list[Item]:
    """Return the mark of figures of a job that is stuck or has failed."""
    is_present = state.past_step is None and state.snapshot.totals.steps
    return [Item((dim(UNTIL_THEN.strip()),))] if is_present and trouble_of(state.snapshot) else []


def _exposed_parts(state: ViewState, width: int) -> StyledLine:
    """Return the parts of exposed communication, if they are known and fit."""
    totals = state.snapshot.totals
    if totals.waits is None or width < _WIDE_TOTALS:
        return ()
    return (dim(f" {exposed_text(totals.waits, totals.exposed_ns):<{_PARTS_CELLS}}"),)


def _knob(state: ViewState) -> list[Item]:
    """Return the selected knob: its value, and its keys or why they do nothing."""
    if state.selected_knob is None or (state.starting and state.selected_knob.differs):
        return []
    knob, change = state.selected_knob.knob, state.change
    value = bold(present_words(knob))
    if state.past_step is not None:
        value = bold(_value_in(state, state.past_step))
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
    line: StyledLine = (dim(name), bold(f"{duration(totals.launch_lead_ns):<7}"))
    if bound := totals.launch_bound:
        on = runs_of(bound) if len(bound) <= _MOST_NAMED else f"{len(bound)} of {len(state.snapshot.ranks)}"
        everywhere = len(bound) == len(state.snapshot.ranks)
        line = (*line, Segment(f" launch-bound{'' if everywhere else f' on rank {on}'}", BOLD_WARNING))
    return [Item(line)]


def _bound(state: ViewState) -> list[Item]:
    """Return what bounds the step; nothing for a past step, since findings are not about it."""
    if state.past_step is not None:
        return []
    word = bound_by(state.snapshot, state.findings or (), state.first_line)
    return [Item((bold(word),))] if word else []


def _rule(state: ViewState, width: int) -> list[Item]:
    words = window_text(state.snapshot.totals, brief=width < _WIDER)
    if width < _WIDE_TOTALS:
        words = words.partition(" (")[0]
    offered = state.offers("app.window") and state.past_step is None
    key: StyledLine = (Segment(" "), Segment("W", KEY)) if offered else ()
    return [Item((dim(words), *key))] if words else []


def _sampling(state: ViewState) -> list[Item]:
    if state.starting:
        return []  # the sampling is not decided yet
    every = {view.info.detail_every for view in state.snapshot.ranks if view.info is not None}
    if not every:
        return []
    words = {0: "phases only", 1: "every step measured"}
    if max(every) and state.snapshot.totals.exposed_ns is None and why_unmeasured(state.snapshot.ranks):
        return []  # the lines above give the reason
    text = words.get(max(every), f"1 of {max(every)} steps measured")
    # Ranks report a change one after the other.
    return [Item((dim(f"{text}, on some ranks" if len(every) > 1 and 0 in every else text),), 3)]


class Legend(JobView):
    """One line."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        textured, narrow, waits = self.look.textured, width < 70, self.state.waits
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
            swatch = [Segment(each.texture if textured else "█", TextStyle(each.key)) for each in shades]
            items.append(Item((*swatch, dim(word)), 1))
        right = []
        if words := self.state.filter.words:
            of = f"{len(self.state.rows)} of {len(self.state.snapshot.ranks)} ranks "
            right.append(Item((Segment(f"/{words}  {of}", TextStyle("accent")),)))
        items[0] = items[0]._replace(line=(Segment(" "), *items[0].line))
        return [fit(items, right, width, " " if narrow else "   ")]
