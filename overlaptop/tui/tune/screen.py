"""The job's knobs, and the log of changes."""

from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.fleet.knobs import NOT_ALLOWED, JobKnob
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import JobFolderError
from overlaptop.report.hosts import is_there
from overlaptop.report.knobs import allowed_words, code_line, present_words, short_name, value_words
from overlaptop.text import clock, shortened, with_unit
from overlaptop.tui.draw.layout import Item, code_to_keep, fit, paragraph
from overlaptop.tui.draw.segments import BOLD_WARNING, KEY, TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import Cell, Column, Table
from overlaptop.tui.help.glossary import TUNE
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import TUNE_KEYS, bindings
from overlaptop.tui.model.knob_editor import NOTHING, SCRIPT, change_words
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.screen import DashboardScreen
from overlaptop.tui.widgets.view import LinesView, Page, RowList
from overlaptop.wire.commands import CHANGED

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
        table = Table(_knob_columns(self.state), width, self.rows)
        return [table.header(), *self.listed(self.rows, height - 1, table.row)]


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
        lines += paragraph(f"Allowed: {allowed_words(knob)}.", width, rows=2)
        if selected.refusal:
            lines += paragraph(f"Cannot be changed: {selected.refusal}.", width, BOLD_WARNING, rows=4)
        code = code_line(knob) if knob.value_text != knob.original_text else ""
        return [*lines, *(code_to_keep(code, width) if code else [])]


class ChangeLog(Page):
    """Newest first."""

    fades = True

    def heading(self, width: int) -> list[StyledLine]:
        title = [Item((bold(" Changes"),)), Item((dim("newest first"),), 3)]
        if not any(is_there(node.name) for node in self.state.snapshot.nodes):
            with suppress(JobFolderError):
                path = Segment(str(change_log.path()), TextStyle("accent"))
                title += [Item((dim("all are kept in"),), 2), Item((path,), 1)]
        return [fit(title, [], width, "  ")]

    def lines(self, width: int) -> list[StyledLine]:
        changes = self.state.snapshot.changes[::-1]
        if not changes:
            return [(dim("  none yet"),)]
        table = Table(self._columns(), width, changes)
        lines: list[StyledLine] = []
        for each in changes:
            reason = change_words(each).partition(": ")[2]
            lines += [table.row(each), *paragraph(reason, width, _style(each), indent=11, rows=3)]
        return lines

    def _columns(self) -> list[Column[CommandView]]:
        units = {each.knob.name: each.knob.unit for each in self.state.snapshot.knobs}
        own = self.dashboard.knobs.own

        def values(each: CommandView) -> str:
            new = each.new or (SCRIPT if each.value is None else str(each.value))
            return f"{each.old} → {with_unit(new, units.get(each.knob, ''))}".lstrip()

        def who(each: CommandView) -> Segment:
            return dim("you" if each.id in own else each.by or "not said")

        def said(each: CommandView) -> Segment:
            return Segment(change_words(each).partition(": ")[0], _style(each))

        return [
            Column("at", 8, lambda each: dim(clock(each.at_ns)), right=False),
            Column("knob", 8, lambda each: short_name(each.knob), right=False, grows=True),
            Column("change", 10, values, right=False, grows=True),
            Column("by", 8, who, right=False, shown_from=64, grows=True),
            Column("", 20, said, right=False),
        ]


def _style(change: CommandView) -> TextStyle:
    return TextStyle({FAILED: "error", CHANGED: "good"}.get(change.state, "warning"))


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

    def action_select(self) -> None:
        self.dashboard.select_knob(self.knob)

    def action_restore(self) -> None:
        self.dashboard.select_knob(self.knob)
        self.dashboard.knobs.restore()

    def action_scroll(self, lines: int) -> None:
        self._log.move(lines)


def _knob_columns(state: ViewState) -> list[Column[JobKnob]]:
    def note(each: JobKnob) -> Cell:
        if each.refusal == NOT_ALLOWED:
            return dim("needs --control")
        if each.refusal:
            return dim(f"fixed: {each.refusal}")
        if state.readonly:
            return dim("read-only")
        if each.knob.name == state.selected_name:
            return (Segment("selected ", TextStyle("good", bold=True)), Segment("[ ]", KEY))
        return dim("enter selects it")

    columns: list[Column[JobKnob]] = [
        Column("knob", 6, lambda each: bold(each.knob.name)),
        Column("now", 6, lambda each: bold(present_words(each.knob))),
        Column(SCRIPT, 6, lambda each: value_words(each.knob, None), shown_from=60),
        Column("allowed", 7, lambda each: allowed_words(each.knob), shown_from=74),
        Column("belongs to", 10, lambda each: dim(shortened(each.knob.owner, 28)), shown_from=100),
        Column("", 12, note),
    ]
    return [replace(each, right=False, grows=True) for each in columns]
