"""The job's knobs: a row for each, and all facts about the selected one."""

from overlaptop.fleet.knobs import JobKnob
from overlaptop.report.knobs import allowed_words, code_line, present_words, value_words
from overlaptop.text import shortened
from overlaptop.tui.draw.segments import (
    BOLD_WARNING,
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
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.knob_editor import NOTHING
from overlaptop.tui.model.knob_values import SCRIPT
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.widgets.view import LinesView, RowList

_COLUMNS = (
    Column("knob", 6, right=False),
    Column("now", 6, right=False),
    Column(SCRIPT, 6, right=False, shown_from=60),
    Column("allowed", 7, right=False, shown_from=74),
    Column("whose", 6, right=False, shown_from=100),
    Column("", 12, right=False),
)
_WHAT_THEY_ARE = (
    "Knobs are settings of a running job: DDP's bucket_cap_mb, FSDP2's depth of prefetch, and those that "
    "a script declares with overlaptop.agent.knob(). To change them, start the job with --control; "
    "bundled workloads always have it."
)


class KnobTable(RowList[JobKnob]):
    """One row a knob."""

    above = 1
    opens = "screen.select"

    def full_height(self, width: int) -> int:
        return 1 + len(self.rows) if self.rows else 2 + len(paragraph(_WHAT_THEY_ARE, width))

    @property
    def rows(self) -> tuple[JobKnob, ...]:
        return self.state.snapshot.knobs

    def key(self, row: JobKnob) -> object:
        return row.knob.name

    def draw(self, width: int, height: int) -> list[StyledLine]:
        if not self.rows:
            return [(bold(f" {NOTHING}"),), (), *paragraph(_WHAT_THEY_ARE, width)]
        cells = {each.knob.name: _cells(each, self.state) for each in self.rows}
        words = {
            column.title: ["".join(part.text for part in row[at]) for row in cells.values()]
            for at, column in enumerate(_COLUMNS)
        }
        table = Table(_COLUMNS, width, words)

        def row(each: JobKnob, selected: bool) -> StyledLine:
            return table.row(cells[each.knob.name], cursor=selected)

        return [table.header(), *self.listed(self.rows, height - 1, row)]


class KnobDetail(LinesView):
    """The facts about the selected knob, in sentences."""

    def __init__(self, dashboard: Dashboard, table: KnobTable) -> None:
        super().__init__(dashboard)
        self._table = table

    def lines(self, width: int) -> list[StyledLine]:
        if (selected := self._table.selected) is None:
            return []
        knob, warning = selected.knob, TextStyle("warning")
        about, whose = knob.about or "no description", f" ({knob.owner})" if knob.owner else ""
        lines = paragraph(f"{knob.name}{whose}: {about.rstrip('.')}.", width, TEXT, rows=3)
        now = f"Now {present_words(knob)}; the script gave {value_words(knob, None)}"
        lines += paragraph(f"{now}; allowed: {allowed_words(knob)}.", width, rows=2)
        if selected.refusal:
            lines += paragraph(f"Cannot be changed: {selected.refusal}.", width, BOLD_WARNING, rows=4)
        elif self.state.readonly:
            lines += paragraph(
                "Not changed from here: this dashboard is read-only.", width, warning, rows=2
            )
        if selected.differs:
            lines += paragraph("Ranks have different values while they change.", width, warning, rows=2)
        code = code_line(knob)
        return [*lines, *(code_to_keep(code, width) if code else [])]


def _cells(job_knob: JobKnob, state: ViewState) -> tuple[StyledLine, ...]:
    knob = job_knob.knob
    now: StyledLine = (bold(present_words(knob)),)
    change = state.change
    if change is not None and change.state == "pending" and change.knob == knob.name and change.new:
        now = (Segment(f"{change.old} → {change.new}", BOLD_WARNING),)
    if job_knob.refusal:
        note: StyledLine = (dim(f"fixed: {job_knob.refusal}"),)
    elif state.readonly:
        note = (dim("read-only"),)
    elif knob.name == state.selected_name:
        note = (Segment("selected ", TextStyle("good", bold=True)), Segment("[ ]", KEY))
    else:
        note = (dim("enter selects it"),)
    return (
        (bold(knob.name),),
        now,
        (Segment(value_words(knob, None)),),
        (Segment(allowed_words(knob)),),
        (dim(shortened(knob.owner, 28)),),
        note,
    )
