"""What the job that was started here wrote last; of one that failed, why."""

from __future__ import annotations

import textwrap

from overlaptop.launch.request import LaunchPhase, LaunchStatus
from overlaptop.text import printable
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    TEXT,
    Segment,
    StyledLine,
    TextStyle,
    crop,
    elided,
    paragraph,
)
from overlaptop.tui.view import JobView

LONGEST_LINE = 500


class JobWords(JobView):
    """A title, then its last lines, the newest at the foot unless one has scrolled back."""

    fades = False
    _back = 0
    """Lines below the foot."""

    def full_height(self, width: int) -> int:
        """Lines that it would fill, roughly; 0: there is nothing to be said."""
        launcher, status = self.dashboard.options.launcher, self.dashboard.launch.status
        if launcher is None or status.phase in (LaunchPhase.NOTHING, LaunchPhase.ENDING):
            return 0
        lines = len(launcher.output())
        return len(_title(status, width)) + lines if lines or status.failed else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """The title and what fits below it."""
        launcher, status = self.dashboard.options.launcher, self.dashboard.launch.status
        if launcher is None:
            return []
        lines = [
            part
            for line in launcher.output()
            for part in textwrap.wrap(
                printable(line.expandtabs(4))[:LONGEST_LINE], max(16, width - 4), drop_whitespace=False
            )
            or [""]
        ]
        title = _title(status, width)
        below = max(0, height - len(title))
        self._back = max(0, min(self._back, len(lines) - below))
        end = len(lines) - self._back
        style = TextStyle("error") if status.failed else TEXT
        if below and (end < len(lines) or end > below):
            place = Segment(f"  lines {max(0, end - below) + 1}–{end} of {len(lines)}", DIM)
            title = [*title[:-1], elided((*title[-1], place), width)]
        return [
            *title,
            *(crop((Segment(f"   {line}", style),), width) for line in lines[max(0, end - below) : end]),
        ]

    def scroll_lines(self, lines: int) -> None:
        """Down, or up where negative."""
        self._back = max(0, self._back - lines)
        self.redraw()


def _title(status: LaunchStatus, width: int) -> list[StyledLine]:
    """How it ended: of a job that could not even be started, that is all there is."""
    if status.phase is not LaunchPhase.OVER:
        return [elided((Segment(" what it wrote last", BOLD),), width)]
    style = TextStyle("error" if status.failed else "bright", bold=True)
    return paragraph(printable(f"{status.label} ended: {status.how}"), width, style, rows=4)
