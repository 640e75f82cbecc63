"""Pages of text with a cursor or a scroll bar's worth of keys: help and notices."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult

from overlaptop.fleet.notices import gathered
from overlaptop.tui.ink import BOLD, DIM, TEXT, Ink, Line, Run
from overlaptop.tui.keys import (
    APP_KEYS,
    HOSTS_KEYS,
    LIST_KEYS,
    MACHINE_KEYS,
    OVERVIEW_KEYS,
    RANK_KEYS,
    SEARCH_KEYS,
    TIMELINE_KEYS,
    TUNE_KEYS,
    WORKLOADS_KEYS,
    Key,
    bindings,
    changes_something,
)
from overlaptop.tui.parts import STALL, STEP_PARTS
from overlaptop.tui.screens.base import DashboardScreen, Heights
from overlaptop.tui.state import ViewState
from overlaptop.tui.text import UNKNOWN, clock, runs_of
from overlaptop.tui.widgets.key_bar import HELP_HINT, QUIT_HINT, Hint, KeyBar
from overlaptop.tui.widgets.scroll_view import ScrollView

HINTS = (
    ("esc", "back", "screen.back", "back"),
    ("↑ ↓", "scroll", "screen.move(1)", "scroll"),
    QUIT_HINT,
    HELP_HINT,
)
SCROLL_KEYS = tuple(key for key in LIST_KEYS if key.action != "open")
WORDS = (
    (
        "overlap",
        "hidden / all communication: the share that ran beside compute; none without communication",
    ),
    *((part.word, part.meaning) for part in (*STEP_PARTS, STALL)),
    ("step", "compute only + hidden + exposed + copy only + idle, to the nanosecond"),
    ("speed-up", "(compute + communication) / step: what was gained over running one after the other"),
    ("attainable", "(compute + communication) / the longer of the two: were all of it hidden"),
    (
        "lead",
        "when the GPU came to a step's end, less when the CPU had issued it; the least of all ranks. With "
        "no lead, and idle time, the job is launch-bound: the CPU cannot launch as fast as the GPU works",
    ),
    (
        "named",
        "the share of NCCL's kernel time whose collective is known by name and bytes; others go by their "
        "kernel's name",
    ),
    ("source", "where spans come from: kernels (CUPTI records), events (CUDA events), host (host clock)"),
    (
        "≤ ≥ ≈",
        "with events and host, compute is the step less its stalls, an upper bound: gaps between kernels "
        "are not seen. So overlap and speed-up are upper bounds, exposed is a lower one, attainable may be "
        "off either way, and idle is not seen",
    ),
    (
        "NVLink PCIe",
        "bytes a second as the GPU's own counters have them, decimal, and the share of the peak in one "
        "direction; in the overview the busier of the two directions",
    ),
    (
        "NUMA",
        "the node next to the GPU, and whether the process may run there: ✓ only there, ~ also elsewhere, "
        "✗ only elsewhere, ? not known",
    ),
    (
        "clock ±",
        "how well a host's clock is known, by the time that an answer took: times of its steps are shifted "
        "to this machine's clock, and may be off by so much",
    ),
    (
        "unexplained",
        "what the link counters measured less what the job's own collectives account for: traffic of "
        "somebody else, or copies of the job's own",
    ),
    (
        "knob",
        "a setting of the running job: DDP's bucket_cap_mb, FSDP2's depth of prefetch, or what the script "
        "declares with overlaptop.agent.knob(). All ranks change at one step; [ ] shows the one in hand",
    ),
    (
        "bucket",
        "DDP's bucket_cap_mb, MiB: gradients are reduced in buckets of that size. Small ones start early, "
        "large ones use the link better",
    ),
    (
        "difference",
        "of the steps before and after a change, with its 95 % interval in brackets; ± after a figure is "
        "half the distance of the quartiles: half of the steps lie so near to their middle. ▼ ▲ more than "
        "noise, in colour where that is better or worse; ≈ within noise, ? too few steps to say, · not "
        "compared: a step does other work than before",
    ),
    (
        "★",
        "in a search: the value with the shortest step of those measured, be it by noise: the line beside "
        "it says so. ± and the bars of the curve are 95 % intervals",
    ),
    (
        "model",
        "in a search: the step that the job's own collectives and gradients predict for a value. Off by: "
        "how far from what was measured it is now; foretold: before that value was measured",
    ),
    ("dropped", "messages, spans and steps that did not fit somewhere on the way here and are missing"),
    ("history", "step times from zero to a fixed scale; a column longer than the scale is full and orange"),
    ("bars", "drawn to one scale, no less than any of the last 16 steps; a shade is a cell partly covered"),
    (UNKNOWN, "not known; never zero"),
)


class Page(ScrollView):
    """Lines that are scrolled."""

    fades = False

    def lines(self, width: int) -> list[Line]:
        """All of them."""
        raise NotImplementedError

    def draw(self, width: int, height: int) -> list[Line]:
        """Those in sight."""
        lines = self.lines(width)
        self.first = max(0, min(self.first, len(lines) - height))
        return lines[self.first : self.first + height]


class HelpPage(Page):
    """Keys, then words."""

    def lines(self, width: int) -> list[Line]:
        """Two columns, the second one wrapped."""
        lines: list[Line] = []
        for title, keys in (
            ("Everywhere", APP_KEYS),
            ("Overview", OVERVIEW_KEYS),
            ("Timeline", TIMELINE_KEYS),
            ("A rank's screen", RANK_KEYS),
            ("Machine", MACHINE_KEYS),
            ("Tune", TUNE_KEYS),
            ("Search", SEARCH_KEYS),
            ("Workloads", WORKLOADS_KEYS),
            ("Hosts", HOSTS_KEYS),
        ):
            offered = [key for key in keys if not (self.state.readonly and changes_something(key.action))]
            lines += _section(title, [(key.shown, self._words(key)) for key in offered], 16, width)
        return lines + _section("Words", list(WORDS), 16, width)

    def _words(self, key: Key) -> str:
        if key.action != "quit":
            return key.words
        starter = self.dashboard.options.starter
        ends = starter.running if starter is not None else ""
        return f"quit; {ends}, started here, ends; other jobs go on" if ends else "quit; the job goes on"


class NoticesPage(Page):
    """Newest first."""

    def lines(self, width: int) -> list[Line]:
        """Time, ranks, level, text."""
        notices = gathered(self.state.snapshot.notices)
        lines: list[Line] = [(Run(" Notices", BOLD), Run("  newest first", DIM)), ()]
        if not notices:
            return [*lines, (Run("  none: nothing is wrong that an agent knows of", DIM),)]
        for notice in reversed(notices):
            color = {"error": "error", "warning": "warning"}.get(notice.level, "dim")
            whose = f"rank{'s' * (len(notice.ranks) > 1)} {runs_of(notice.ranks)}"
            head = f"  {clock(notice.at_ns)}  {whose:<10} "
            level = f"{notice.level:<8} "
            texts = textwrap.wrap(notice.text, max(20, width - len(head) - len(level) - 1)) or [""]
            lines.append((Run(head, DIM), Run(level, Ink(color, bold=True)), Run(texts[0])))
            lines += [(Run(" " * (len(head) + len(level))), Run(more)) for more in texts[1:]]
        return lines


class PageScreen(DashboardScreen):
    """A page from top to bottom, and its keys."""

    BINDINGS: ClassVar = bindings(SCROLL_KEYS)
    hints: ClassVar[Sequence[tuple[str, str, str] | tuple[str, str, str, str] | Hint]] = HINTS
    page_type: type[Page]

    def __init__(self, state: ViewState) -> None:
        super().__init__(state)
        self._page = self.page_type(state)
        self._keys = KeyBar(state, self.hints)

    def compose(self) -> ComposeResult:
        """The page and its keys."""
        yield self._page
        yield self._keys

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        """All for the page."""
        foot = 1 if height >= 4 else 0
        return ((self._page, height - foot, 0), (self._keys, foot, 0))

    def action_move(self, lines: int) -> None:
        """Scroll."""
        self._page.scroll_lines(lines)

    def action_back(self) -> None:
        """To where one came from."""
        self.dashboard.action_close()


class HelpScreen(PageScreen):
    """Every key, and the words."""

    page_type = HelpPage


class NoticesScreen(PageScreen):
    """What agents said."""

    page_type = NoticesPage


def _section(title: str, rows: list[tuple[str, str]], left: int, width: int) -> list[Line]:
    lines: list[Line] = [(Run(f" {title}", Ink("accent", bold=True)),)]
    for name, words in rows:
        wrapped = textwrap.wrap(words, max(16, width - left - 4)) or [""]
        lines.append((Run(f"  {name:<{left}}", BOLD), Run(wrapped[0], TEXT)))
        lines += [(Run(" " * (left + 2)), Run(more, TEXT)) for more in wrapped[1:]]
    return [*lines, ()]
