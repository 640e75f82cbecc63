"""The job's totals: overlap first, then where the time goes, then what is missing from the figures."""

from __future__ import annotations

from overlaptop.tui.ink import BOLD, DIM, Ink, Item, Line, Run, joined, line_width, wrap
from overlaptop.tui.state import ViewState
from overlaptop.tui.text import UNKNOWN, count, duration, ordinal, percent, ratio
from overlaptop.tui.widgets.line_view import LineView

GOOD_OVERLAP, POOR_OVERLAP = 0.9, 0.6


class TotalsLine(LineView):
    """One line; two where it is narrow and there is height."""

    def draw(self, width: int, height: int) -> list[Line]:
        """The totals in order of weight."""
        items = total_items(self.state)
        wide = joined([item.line for item in items])
        gap = "   " if line_width(wide) <= width - 1 else "  "
        lines = wrap(items, width - 1, height, gap)
        return [(Run(" "), *line) for line in lines]


def overlap_ink(overlap: float | None, *, bold: bool = False) -> Ink:
    """Green for hidden, orange for exposed, plain in between; the figure itself says the same."""
    if overlap is None:
        return DIM
    color = "good" if overlap >= GOOD_OVERLAP else "bad" if overlap < POOR_OVERLAP else "text"
    return Ink(color, bold=bold)


def total_items(state: ViewState) -> list[Item]:
    """The totals as figures with their names.

    Where compute is an upper bound, so are overlap and speed-up, and exposed is a lower one; attainable
    may be off either way.
    """
    totals = state.snapshot.totals
    most, least, about = ("", "", "") if state.exact else ("≤", "≥", "≈")

    def item(name: str, figure: str, cells: int, ink: Ink = BOLD, *more: Run) -> Item:
        # As wide as its figures get: what follows must not move with each of them.
        return Item((Run(f"{name} ", DIM), Run(f"{figure:<{cells}}", ink), *more))

    def bounded(figure: str, sign: str) -> str:
        return figure if figure == UNKNOWN else sign + figure

    attainable = bounded(ratio(totals.attainable), about)
    idle = duration(totals.idle_ns) if state.exact or totals.idle_ns is not None else "not seen"
    return [
        item("overlap", bounded(percent(totals.overlap), most), 8, overlap_ink(totals.overlap, bold=True)),
        item("exposed", bounded(duration(totals.exposed_ns), least), 8),
        item("stall", duration(totals.stall_ns), 7),
        item("idle", idle, 8, BOLD if totals.idle_ns is not None else DIM),
        item(
            "speed-up",
            bounded(ratio(totals.speedup), most),
            6,
            BOLD,
            Run(" of ", DIM),
            Run(f"{attainable:<6}", BOLD),
        ),
        *_launching(state),
        item("dropped", count(totals.dropped), 1, Ink("warning", bold=True) if totals.dropped else DIM),
        *_sampling(state),
    ]


def _launching(state: ViewState) -> list[Item]:
    """How far the CPU is ahead of the GPU; nothing where no rank's source can see it."""
    totals = state.snapshot.totals
    if totals.launch_lead_ns is None:
        return []
    line: Line = (Run("lead ", DIM), Run(f"{duration(totals.launch_lead_ns):<7}", BOLD))
    if totals.launch_bound:
        of = "" if totals.launch_bound == len(state.snapshot.ranks) else f" on {totals.launch_bound}"
        line = (*line, Run(f" launch-bound{of}", Ink("warning", bold=True)))
    return [Item(line)]


def _sampling(state: ViewState) -> list[Item]:
    every = sorted({view.info.detail_every for view in state.snapshot.ranks if view.info is not None})
    if not every:
        return []
    words = {0: "phases only", 1: "collectives in every step"}
    said = words.get(every[-1], f"collectives in every {ordinal(every[-1])} step")
    if len(every) > 1:
        said += ", on some ranks" if every[0] == 0 else " or oftener"
    return [Item((Run(said, DIM),))]
