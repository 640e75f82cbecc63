"""What can be changed of the job: a row for each knob, and all that is known of the chosen one."""

from __future__ import annotations

from textual import events

from overlaptop.fleet.knobs import JobKnob
from overlaptop.text import shortened
from overlaptop.tui.dashboard import Dashboard
from overlaptop.tui.draw.segments import (
    KEY,
    TEXT,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    code_to_keep,
    dim,
    paragraph,
)
from overlaptop.tui.draw.table import Column, Table, scrolled
from overlaptop.tui.state import ViewState
from overlaptop.tui.tune.knob_editor import NOTHING
from overlaptop.tui.tune.knob_values import SCRIPT, allowed_words, code_line, with_unit
from overlaptop.tui.view import JobView

_COLUMNS = (
    Column("knob", 6, right=False),
    Column("now", 6, right=False),
    Column(SCRIPT, 6, right=False, shown_from=60),
    Column("allowed", 7, right=False, shown_from=74),
    Column("whose", 6, right=False, shown_from=100),
    Column("", 12, right=False),
)
_WHAT_THEY_ARE = (
    "Knobs are settings of a running job: DDP's bucket_cap_mb, FSDP2's depth of prefetch, and what a "
    "script declares itself with overlaptop.agent.knob(). Jobs obey where they were started with "
    "--control, and bundled workloads always."
)


class KnobTable(JobView):
    """One row a knob, with a cursor."""

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.cursor = 0
        self._first = 0

    @property
    def chosen(self) -> JobKnob | None:
        knobs = self.state.snapshot.knobs
        if not knobs:
            return None
        self.cursor = max(0, min(self.cursor, len(knobs) - 1))
        return knobs[self.cursor]

    def draw(self, width: int, height: int) -> list[StyledLine]:
        knobs = self.state.snapshot.knobs
        if self.chosen is None:
            return [(bold(f" {NOTHING}"),), (), *paragraph(_WHAT_THEY_ARE, width)]
        selected = self.state.selected_name
        rows = [_cells(each, selected=each.knob.name == selected, state=self.state) for each in knobs]
        words = {
            column.title: ["".join(part.text for part in row[at]) for row in rows]
            for at, column in enumerate(_COLUMNS)
        }
        room = max(1, height - 1)
        self._first = scrolled(self._first, self.cursor, len(rows), room)
        table = Table(_COLUMNS, width, words)
        shown = enumerate(rows[self._first : self._first + room], self._first)
        return [table.header(), *(table.row(row, cursor=at == self.cursor) for at, row in shown)]

    async def on_click(self, event: events.Click) -> None:
        index = self._first + event.y - 1
        if event.y > 0 and index < len(self.state.snapshot.knobs):
            await self.screen.run_action(f"screen.move({index - self.cursor})")
            if event.chain >= 2:
                await self.screen.run_action("screen.select")


class KnobDetail(JobView):
    """All that is known of the chosen knob, in sentences."""

    def __init__(self, dashboard: Dashboard, table: KnobTable) -> None:
        super().__init__(dashboard)
        self._table = table

    def draw(self, width: int, height: int) -> list[StyledLine]:  # noqa: ARG002
        return self.lines(width)

    def lines(self, width: int) -> list[StyledLine]:
        chosen = self._table.chosen
        if chosen is None:
            return []
        return detail_lines(chosen, width, readonly=self.state.readonly)


def detail_lines(job_knob: JobKnob, width: int, *, readonly: bool) -> list[StyledLine]:
    """One knob in sentences."""
    knob = job_knob.knob
    lines: list[StyledLine] = []
    about = knob.about or "its owner does not say what it does"
    whose = f" ({knob.owner})" if knob.owner else ""
    lines += paragraph(f"{knob.name}{whose}: {about.rstrip('.')}.", width, TEXT, rows=3)
    now = with_unit(knob.value_text, knob.unit)
    original = with_unit(knob.original_text, knob.unit)
    lines += paragraph(
        f"Now {now}; the script gave {original}; allowed: {allowed_words(knob)}.", width, rows=2
    )
    if job_knob.refusal:
        lines += paragraph(
            f"Cannot be changed: {job_knob.refusal}.", width, TextStyle("warning", bold=True), rows=4
        )
    elif readonly:
        lines += paragraph(
            "Not changed from here: this dashboard is read-only.", width, TextStyle("warning"), rows=2
        )
    if job_knob.differs:
        lines += paragraph(
            "Ranks have different values just now: that is so only while they change.", width,
            TextStyle("warning"), rows=2,
        )  # fmt: skip
    if code := code_line(knob):
        lines += code_to_keep(code, width)
    return lines


def _cells(job_knob: JobKnob, *, selected: bool, state: ViewState) -> tuple[StyledLine, ...]:
    knob = job_knob.knob
    now: StyledLine = (bold(with_unit(knob.value_text, knob.unit)),)
    change = state.change
    if change is not None and change.state == "pending" and change.knob == knob.name and change.becomes:
        now = (Segment(f"{change.was} → {change.becomes}", TextStyle("warning", bold=True)),)
    if job_knob.refusal:
        note: StyledLine = (dim(f"fixed: {job_knob.refusal}"),)
    elif state.readonly:
        note = (dim("read-only"),)
    elif selected:
        note = (Segment("selected ", TextStyle("good", bold=True)), Segment("[ ]", KEY))
    else:
        note = (dim("enter selects it"),)
    return (
        (bold(knob.name),),
        now,
        (Segment(with_unit(knob.original_text, knob.unit)),),
        (Segment(allowed_words(knob)),),
        (dim(shortened(knob.owner, 28)),),
        note,
    )
