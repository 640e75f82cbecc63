"""The hosts that are watched, one after the other: all that is known of the line to each."""

from __future__ import annotations

import textwrap
from typing import ClassVar

from overlaptop.fleet.snapshot import LinkState, NodeView
from overlaptop.tui.glossary import HOSTS
from overlaptop.tui.ink import BOLD, DIM, TEXT, Ink, Line, Run, elided, paragraph
from overlaptop.tui.keys import HOSTS_KEYS, bindings
from overlaptop.tui.nodes import carries, known_within, live_words, state_words
from overlaptop.tui.screens.pages import Page, PageScreen
from overlaptop.tui.state import ViewState
from overlaptop.tui.text import UNKNOWN, age, clock, duration, printable, runs_of
from overlaptop.tui.widgets.key_bar import HELP_HINT, QUIT_HINT

HINTS = (
    ("esc", "back", "screen.back", "back"),
    ("r", "try again now", "screen.retry", "retry"),
    ("↑ ↓", "scroll", "screen.move(1)", "scroll"),
    QUIT_HINT,
    HELP_HINT,
)
_INDENT = 4
_LABEL = 10


class HostsPage(Page):
    """A heading each, and below it what is known."""

    def lines(self, width: int) -> list[Line]:
        """Reasons and foreign words are there in full length."""
        snapshot = self.state.snapshot
        now_ns = self.state.paused_now_ns or snapshot.at_ns
        lines: list[Line] = [(Run(" Hosts", BOLD), Run(f"  {live_words(snapshot)}", DIM)), ()]
        for node in snapshot.nodes:
            lines += [*_host_lines(node, now_ns, width), ()]
        return lines


class HostsScreen(PageScreen):
    """See the module."""

    title_in_help = HOSTS
    BINDINGS: ClassVar = bindings(HOSTS_KEYS)
    hints = HINTS

    def __init__(self, state: ViewState) -> None:
        super().__init__(state, HostsPage(state))

    def action_retry(self) -> None:
        """Try those that are down at once."""
        if (lines := self.dashboard.options.lines) is not None:
            lines.retry()
            self.dashboard.show_now()


def _host_lines(node: NodeView, now_ns: int, width: int) -> list[Line]:
    said = state_words(node, now_ns)
    if node.link is LinkState.WAITING:
        said = (Run("◌ waiting", Ink("warning")),)
    elif node.link is LinkState.LIVE:
        said = (*said, Run(f" since {clock(node.since_ns)} ({age((now_ns - node.since_ns) / 1e9)})", DIM))
    name = Run(f" {printable(node.name)}", Ink("accent", bold=True))
    lines: list[Line] = [elided((name, Run("   "), *said), width)]
    if node.note:
        ink = TEXT if node.link is LinkState.WAITING else Ink("warning")
        lines += paragraph(printable(node.note), width, ink, indent=_INDENT)
    lines += _fact("ranks", runs_of(node.ranks) or "none of this job")
    lines += _fact("clock", _clock(node))
    if node.link is LinkState.LIVE or node.bytes_per_s is not None:
        lines += _fact("receives", carries(node))
    if node.detail:
        lines.append((Run(" " * _INDENT), Run("what its command wrote:", DIM)))
        room = max(16, width - _INDENT - 3)
        for line in node.detail.splitlines():
            for part in textwrap.wrap(printable(line.expandtabs(4)), room) or [""]:
                lines.append((Run(" " * (_INDENT + 2)), Run(part, TEXT)))
    return lines


def _fact(label: str, said: str) -> list[Line]:
    return [(Run(" " * _INDENT), Run(f"{label:<{_LABEL}}", DIM), Run(said, TEXT))]


def _clock(node: NodeView) -> str:
    """By how much it is ahead of ours, and how well that is known."""
    if node.offset_ns is None or node.residual_ns is None:
        return UNKNOWN
    known = known_within(node.residual_ns)
    if abs(node.offset_ns) <= node.residual_ns:
        return f"as this machine's, {known}"
    return f"{duration(abs(node.offset_ns))} {'ahead' if node.offset_ns > 0 else 'behind'}, {known}"
