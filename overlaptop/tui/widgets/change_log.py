"""The log of what was changed: when, by whom, from what to what, at which step, and what became of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from overlaptop.fleet.commands import FAILED, CommandView
from overlaptop.tui.changing import change_words
from overlaptop.tui.ink import BOLD, DIM, TEXT, Ink, Item, Line, Run, crop, fit, line_width, pad, paragraph
from overlaptop.tui.knob_values import SCRIPT, short_name
from overlaptop.tui.text import clock
from overlaptop.tui.widgets.scroll_view import ScrollView
from overlaptop.wire.messages import CHANGED

_WHO_CELLS, _NARROW = 34, 90


class ChangeLog(ScrollView):
    """Newest first."""

    def draw(self, width: int, height: int) -> list[Line]:
        """Title, rows, and where it is kept."""
        control = self.dashboard.control
        rows = log_lines(self.state.snapshot.commands, control.changing.own, control.search_ids, width)
        title = [Item((Run(" Changes", BOLD),)), Item((Run("newest first", DIM),), 3)]
        if control.log_path:
            title += [
                Item((Run("all are kept in", DIM),), 2),
                Item((Run(control.log_path, Ink("accent")),), 1),
            ]
        room = max(0, height - 1)
        self.first = max(0, min(self.first, len(rows) - room))
        return [fit(title, [], width, "  "), *rows[self.first : self.first + room]]


def log_lines(
    commands: Sequence[CommandView], own: Collection[str], own_searches: Collection[str], width: int
) -> list[Line]:
    """A row for each change, newest first; a reason that does not fit goes on below.

    ``own``: ids of the commands that were given here; ``own_searches``: of the searches.
    """
    changes = [each for each in reversed(commands) if each.knob]
    if not changes:
        return [(Run("  none yet", DIM),)]
    lines: list[Line] = []
    names = max(len(short_name(each.knob)) for each in changes)
    values = max(line_width(_values(each)) for each in changes)
    who = min(_WHO_CELLS, max(len(_who(each, own, own_searches)) for each in changes))
    who = min(who, 14) if width < _NARROW else who
    for each in changes:
        head: Line = (
            Run(f" {clock(each.at_ns)}  ", DIM),
            *pad((Run(short_name(each.knob)),), names + 2),
            *pad(_values(each), values + 2),
            *pad((Run(_who(each, own, own_searches), DIM),), who),
            Run("  "),
        )
        ink = Ink("error") if each.state == FAILED else Ink("good" if each.state == CHANGED else "warning")
        words = change_words(each)
        if line_width(head) + len(words) <= width - 1:
            lines.append((*head, Run(words, ink)))
        else:
            lines += [crop(head, width), *paragraph(words, width, ink, indent=11, rows=3)]
    return lines


def _values(view: CommandView) -> Line:
    becomes = view.becomes or (SCRIPT if view.value is None else str(view.value))
    return (Run(f"{view.was} → {becomes}".lstrip(), TEXT),)


def _who(view: CommandView, own: Collection[str], own_searches: Collection[str]) -> str:
    if view.search:
        return "search, here" if view.search in own_searches else f"search of {view.by}"
    return "here" if view.id in own else view.by or "not said"
