"""The log of changes: time, person, old and new value, step, and result."""

from contextlib import suppress

from overlaptop.fleet.commands import FAILED
from overlaptop.jobs import change_log
from overlaptop.jobs.folder import JobFolderError
from overlaptop.report.hosts import is_there
from overlaptop.report.knobs import short_name
from overlaptop.text import clock, with_unit
from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, bold, dim, fit, paragraph
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.knob_editor import change_words, who_asked
from overlaptop.tui.model.knob_values import SCRIPT
from overlaptop.tui.widgets.page import Page
from overlaptop.wire.commands import CHANGED

_COLUMNS = (
    Column("at", 8, right=False),
    Column("knob", 8, right=False),
    Column("change", 10, right=False),
    Column("by", 8, right=False, shown_from=64),
    Column("", 20, right=False),
)


class ChangeLog(Page):
    """Newest first."""

    fades = True

    def draw(self, width: int, height: int) -> list[StyledLine]:
        title = [Item((bold(" Changes"),)), Item((dim("newest first"),), 3)]
        if any(is_there(node.name) for node in self.state.snapshot.nodes):
            title.append(Item((dim("each host keeps all of its own: changes.jsonl"),), 2))
        else:
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
            rows.append((short_name(each.knob), values, who_asked(each, own), change_words(each)))
        knobs, values_of, asked, said_of = zip(*rows, strict=True)
        table = Table(_COLUMNS, width, {"knob": knobs, "change": values_of, "": said_of, "by": asked})
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
