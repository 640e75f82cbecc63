"""What the job that was started here wrote last; of one that failed, why."""

from __future__ import annotations

import textwrap

from overlaptop.tui.ink import BOLD, DIM, TEXT, Ink, Line, Run, crop
from overlaptop.tui.starting import Phase
from overlaptop.tui.text import printable
from overlaptop.tui.widgets.line_view import LineView

LONGEST_LINE = 500


class JobWords(LineView):
    """A title, then its last lines, the newest at the foot unless one has scrolled back."""

    fades = False
    _back = 0
    """Lines below the foot."""

    @property
    def full_height(self) -> int:
        """Lines that it would fill, roughly; 0: there is no such job."""
        starter = self.dashboard.options.starter
        if starter is None or self.dashboard.started.status.phase in (Phase.NOTHING, Phase.ENDING):
            return 0
        return 1 + lines if (lines := len(starter.output())) else 0

    def draw(self, width: int, height: int) -> list[Line]:
        """The title and what fits below it."""
        starter, status = self.dashboard.options.starter, self.dashboard.started.status
        if starter is None:
            return []
        lines = [
            part
            for line in starter.output()
            for part in textwrap.wrap(
                printable(line.expandtabs(4))[:LONGEST_LINE], max(16, width - 4), drop_whitespace=False
            )
            or [""]
        ]
        below = max(0, height - 1)
        self._back = max(0, min(self._back, len(lines) - below))
        end = len(lines) - self._back
        ink = Ink("error") if status.failed else TEXT
        title: Line = (Run(" what it wrote last", BOLD),)
        if status.phase is Phase.OVER:
            ended = f" {status.label} ended: {status.how}"
            title = (Run(ended, Ink("error" if status.failed else "bright", bold=True)),)
        if end < len(lines) or end > below:
            title = (*title, Run(f"  lines {max(0, end - below) + 1}–{end} of {len(lines)}", DIM))
        return [
            crop(title, width),
            *(crop((Run(f"   {line}", ink),), width) for line in lines[max(0, end - below) : end]),
        ]

    def scroll_lines(self, lines: int) -> None:
        """Down, or up where negative."""
        self._back = max(0, self._back - lines)
        self.redraw()
