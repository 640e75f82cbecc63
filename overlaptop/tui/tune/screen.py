"""The job's knobs, and the log of changes."""

from contextlib import suppress
from typing import ClassVar

from overlaptop.fleet.commands import FAILED
from overlaptop.fleet.knobs import NOT_ALLOWED, JobKnob
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import JobFolderError
from overlaptop.report.hosts import is_there
from overlaptop.report.knobs import allowed_words, code_line, present_words, short_name, value_words
from overlaptop.text import clock, shortened, with_unit
from overlaptop.tui.draw.layout import Item, code_to_keep, fit, paragraph
from overlaptop.tui.draw.segments import BOLD_WARNING, KEY, TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.help.glossary import TUNE
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TUNE_KEYS, bindings
from overlaptop.tui.model.knob_editor import NOTHING, SCRIPT, change_words
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import LinesView, Page, RowList
from overlaptop.wire.commands import CHANGED

_KNOB_COLUMNS = (
    Column("knob", 6, right=False),
    Column("now", 6, right=False),
    Column(SCRIPT, 6, right=False, shown_from=60),
    Column("allowed", 7, right=False, shown_from=74),
    Column("belongs to", 10, right=False, shown_from=100),
    Column("", 12, right=False),
)
_LOG_COLUMNS = (
    Column("at", 8, right=False),
    Column("knob", 8, right=False),
    Column("change", 10, right=False),
    Column("by", 8, right=False, shown_from=64),
    Column("", 20, right=False),
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
            for at, column in enumerate(_KNOB_COLUMNS)
        }
        table = Table(_KNOB_COLUMNS, width, words)

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
        knob = selected.knob
        about, whose = knob.about or "no description", f" ({knob.owner})" if knob.owner else ""
        lines = paragraph(f"{knob.name}{whose}: {about.rstrip('.')}.", width, TEXT, rows=3)
        now = f"Now {present_words(knob)}; the script gave {value_words(knob, None)}"
        lines += paragraph(f"{now}; allowed: {allowed_words(knob)}.", width, rows=2)
        if selected.refusal:
            lines += paragraph(f"Cannot be changed: {selected.refusal}.", width, BOLD_WARNING, rows=4)
        code = code_line(knob) if knob.value_text != knob.original_text else ""
        return [*lines, *(code_to_keep(code, width) if code else [])]


class ChangeLog(Page):
    """Newest first."""

    fades = True

    def draw(self, width: int, height: int) -> list[StyledLine]:
        title = [Item((bold(" Changes"),)), Item((dim("newest first"),), 3)]
        if not any(is_there(node.name) for node in self.state.snapshot.nodes):
            with suppress(JobFolderError):
                path = Segment(str(change_log.path()), TextStyle("accent"))
                title += [Item((dim("all are kept in"),), 2), Item((path,), 1)]
        return [fit(title, [], width, "  "), *super().draw(width, height - 1)]

    def lines(self, width: int) -> list[StyledLine]:
        changes = self.state.snapshot.changes[::-1]
        if not changes:
            return [(dim("  none yet"),)]
        units = {each.knob.name: each.knob.unit for each in self.state.snapshot.knobs}
        own, rows = self.dashboard.knobs.own, []
        for each in changes:
            new = each.new or (SCRIPT if each.value is None else str(each.value))
            values = f"{each.old} → {with_unit(new, units.get(each.knob, ''))}".lstrip()
            who = "you" if each.id in own else each.by or "not said"
            rows.append((short_name(each.knob), values, who, change_words(each)))
        knobs, values_of, asked, said_of = zip(*rows, strict=True)
        table = Table(_LOG_COLUMNS, width, {"knob": knobs, "change": values_of, "": said_of, "by": asked})
        lines: list[StyledLine] = []
        for each, (knob, values, who, said) in zip(changes, rows, strict=True):
            style = TextStyle({FAILED: "error", CHANGED: "good"}.get(each.state, "warning"))
            head = ((dim(clock(each.at_ns)),), (Segment(knob),), (Segment(values),), (dim(who),))
            line = table.row((*head, (Segment(said, style),)))
            if any("…" in segment.text for segment in line[-2:]):  # a long reason continues below
                lines += [table.row((*head, ())), *paragraph(said, width, style, indent=11, rows=3)]
            else:
                lines.append(line)
        return lines


class TuneScreen(DashboardScreen):
    """Knobs, the selected one in detail, the newest change's progress, and the log."""

    title_in_help = TUNE
    BINDINGS: ClassVar = bindings(TUNE_KEYS)

    def __init__(self, dashboard: Dashboard) -> None:
        self._table, self._log = KnobTable(dashboard), ChangeLog(dashboard)
        detail = KnobDetail(dashboard, self._table)
        super().__init__(dashboard, JobHeader(dashboard), self._table, detail, self._log)
        self._table.cursor = self.state.selected_name

    @property
    def knob(self) -> str:
        return selected.knob.name if (selected := self._table.selected) is not None else ""

    def action_move(self, rows: int) -> None:
        self._table.move(rows)
        self.redraw()

    def action_select(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.on_change()

    def action_restore(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.knobs.restore()
        self.dashboard.on_change()

    def action_scroll(self, lines: int) -> None:
        self._log.move(lines)


def _cells(job_knob: JobKnob, state: ViewState) -> tuple[StyledLine, ...]:
    knob = job_knob.knob
    if job_knob.refusal == NOT_ALLOWED:
        note: StyledLine = (dim("needs --control"),)
    elif job_knob.refusal:
        note = (dim(f"fixed: {job_knob.refusal}"),)
    elif state.readonly:
        note = (dim("read-only"),)
    elif knob.name == state.selected_name:
        note = (Segment("selected ", TextStyle("good", bold=True)), Segment("[ ]", KEY))
    else:
        note = (dim("enter selects it"),)
    return (
        (bold(knob.name),),
        (bold(present_words(knob)),),
        (Segment(value_words(knob, None)),),
        (Segment(allowed_words(knob)),),
        (dim(shortened(knob.owner, 28)),),
        note,
    )
