"""The log of what was changed: when, by whom, from what to what, at which step, and what became of it."""

from __future__ import annotations

from pathlib import PurePath

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.report.hosts import is_there
from overlaptop.report.knobs import short_name
from overlaptop.text import clock, shortened, with_unit
from overlaptop.tui.draw.segments import (
    TEXT,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    elided,
    fit,
    line_width,
    pad,
    paragraph,
)
from overlaptop.tui.model.knob_editor import change_words, who_asked
from overlaptop.tui.model.knob_values import SCRIPT
from overlaptop.tui.widgets.view import ScrollView
from overlaptop.wire.commands import CHANGED

_WHO_CELLS, _NARROW = 34, 90


class ChangeLog(ScrollView):
    """Newest first."""

    def draw(self, width: int, height: int) -> list[StyledLine]:
        rows = self._every_line(width)
        title = [Item((bold(" Changes"),)), Item((dim("newest first"),), 3)]
        if any(is_there(node.name) for node in self.state.snapshot.nodes):
            title.append(Item((dim("each host keeps all of its own: changes.jsonl"),), 2))
        elif path := self.dashboard.control.log_path:
            title += [Item((dim("all are kept in"),), 2), Item((Segment(path, TextStyle("accent")),), 1)]
        room = max(0, height - 1)
        self.first = max(0, min(self.first, len(rows) - room))
        return [fit(title, [], width, "  "), *rows[self.first : self.first + room]]

    def _every_line(self, width: int) -> list[StyledLine]:
        """A row for each change, newest first; a reason that does not fit goes on below. Then those of
        earlier jobs, each below a line that says so.
        """
        earlier = self.dashboard.control.earlier_changes.newest_first
        changes = self.state.snapshot.changes[::-1]
        every = [*changes, *(each for job in earlier for each in job.changes)]
        if not every:
            return [(dim("  none yet"),)]
        names = max(len(short_name(each.knob)) for each in every)
        values = max(line_width(self._values(each)) for each in every)
        asked = max(len(self._who_asked(each)) for each in every)
        cells = (names + 2, values + 2, min(_WHO_CELLS if width >= _NARROW else 14, asked))
        lines = [line for each in changes for line in self._rows(each, cells, width)]
        if not changes:
            lines.append((dim("  none yet of this job"),))
        for job in earlier:
            lines.append((bold(f" of a job watched before: {PurePath(job.script).name}"),))
            for each in reversed(job.changes):
                lines += self._rows(each, cells, width)
        return lines

    def _who_asked(self, view: CommandView) -> str:
        return who_asked(view, self.dashboard.control.editor.own)

    def _values(self, view: CommandView) -> StyledLine:
        unit = self.dashboard.control.earlier_changes.units.get(view.knob, "")
        becomes = view.becomes or (SCRIPT if view.value is None else str(view.value))
        return (Segment(f"{view.was} → {with_unit(becomes, unit)}".lstrip(), TEXT),)

    def _rows(self, view: CommandView, cells: tuple[int, int, int], width: int) -> list[StyledLine]:
        """``cells``: of the name, the values and of who asked."""
        names, values, asked = cells
        head: StyledLine = (
            dim(f" {clock(view.at_ns)}  "),
            *pad((Segment(short_name(view.knob)),), names),
            *pad(self._values(view), values),
            *pad((dim(shortened(self._who_asked(view), asked)),), asked),
            Segment("  "),
        )
        style = TextStyle({FAILED: "error", CHANGED: "good"}.get(view.state, "warning"))
        words = change_words(view)
        if line_width(head) + len(words) <= width - 1:
            return [(*head, Segment(words, style))]
        return [elided(head, width), *paragraph(words, width, style, indent=11, rows=3)]
