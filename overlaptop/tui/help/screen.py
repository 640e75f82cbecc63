"""Help and notices."""

from collections.abc import Sequence

from overlaptop.fleet.notices import grouped
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report import troubles
from overlaptop.report.figures import cost_in_full
from overlaptop.text import clock, named_ranks
from overlaptop.tui.draw.layout import hanging, paragraph
from overlaptop.tui.draw.segments import Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.help.glossary import (
    NOTICES,
    OF_TRACES,
    OVERVIEW,
    RANK,
    SECTIONS,
    TIMELINE,
    TIMELINES,
    WORDS,
)
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import Key
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import Page


class HelpPage(Page):
    """The keys and words of the screen that opened it, then all others."""

    def __init__(self, dashboard: Dashboard, about: str, everywhere: Sequence[Key]) -> None:
        """``about``: the screen's title in the help."""
        super().__init__(dashboard)
        self._about, self._everywhere = about, everywhere

    def lines(self, width: int) -> list[StyledLine]:
        more = {OVERVIEW: [TIMELINE], RANK: [TIMELINE], TIMELINES: [OVERVIEW, TIMELINE]}
        first = [self._about, *more.get(self._about, [])]
        titles = SECTIONS if self.state.moving else OF_TRACES
        sections = {"Everywhere": self._everywhere, **{each: SECTIONS[each] for each in titles}}
        here = [word for screens, words in WORDS if self._about in screens for word in words.items()]
        others = [word for screens, words in WORDS if self._about not in screens for word in words.items()]
        lines: list[StyledLine] = []
        for title in first:
            lines += self._keys(title, sections.pop(title), width)
        if here:
            lines += _section("Words here", here, width)
        for title, keys in sections.items():
            lines += self._keys(title, keys, width)
        return lines + _section("Other words", others, width)

    def _keys(self, title: str, keys: Sequence[Key], width: int) -> list[StyledLine]:
        offered = [key for key in keys if self.state.offers(key.action)]
        return _section(title, [(key.shown, key.words) for key in offered], width)


class NoticesPage(Page):
    """Newest first."""

    def lines(self, width: int) -> list[StyledLine]:
        notices = grouped(self.state.snapshot.notices)
        lines: list[StyledLine] = [(bold(" Notices"), dim("  newest first")), ()]
        if (cost := self.state.snapshot.totals.own_cost) is not None:
            lines += [*paragraph(cost_in_full(cost), width, TextStyle("dim"), indent=2, rows=4), ()]
        if (trouble := trouble_of(self.state.snapshot)) is not None:
            style = TextStyle(troubles.color(trouble), bold=True)
            lines += [*paragraph(troubles.in_full(trouble), width, style, indent=2, rows=4), ()]
        elif not notices:
            return [*lines, (dim("  none: nothing is wrong that an agent knows of"),)]
        for notice in reversed(notices):
            color = {"error": "error", "warning": "warning"}.get(notice.level, "dim")
            whose = named_ranks(notice.ranks)
            level = Segment(f"{notice.level:<8} ", TextStyle(color, bold=True))
            lines += hanging((dim(f"  {clock(notice.at_ns)}  {whose:<10} "), level), notice.text, width)
        return lines


class HelpScreen(PageScreen[HelpPage]):
    """All keys, and the glossary."""

    title_in_help = ""
    view_class, below_header = HelpPage, False

    def __init__(self, dashboard: Dashboard, about: str, everywhere: Sequence[Key]) -> None:
        super().__init__(dashboard, about, everywhere)


class NoticesScreen(PageScreen[NoticesPage]):
    """What agents reported."""

    title_in_help = NOTICES
    view_class, below_header = NoticesPage, False


def _section(title: str, rows: list[tuple[str, str]], width: int) -> list[StyledLine]:
    lines: list[StyledLine] = [(Segment(f" {title}", TextStyle("accent", bold=True)),)]
    for name, words in rows:
        lines += hanging((bold(f"  {name:<16}"),), words, width - 1)
    return [*lines, ()]
