"""The columns of the rank table; narrow terminals leave out the least important.

Empty columns are left out: a job on CPUs has no links, and its idle time is not measured.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter

from overlaptop.fleet.snapshot import RankView
from overlaptop.fleet.trouble import first_failure
from overlaptop.report.links import NUMA_MARKS, Rate, near_node, nvlink_rate, pcie_rate
from overlaptop.report.order import MEASURES, has_data, waiting_at_least, waiting_ns
from overlaptop.report.troubles import condition, condition_color
from overlaptop.report.who_is_late import why_unmeasured
from overlaptop.text import AT_LEAST, UNKNOWN, Unit, percent, rate, whole_percent
from overlaptop.tui.draw.bars import chart, lane, ruler, stacked_bar
from overlaptop.tui.draw.layout import crop, elided
from overlaptop.tui.draw.segments import BOLD, DIM, TEXT, Segment, StyledLine, TextStyle, bold, dim, faded
from overlaptop.tui.draw.table import GAP
from overlaptop.tui.model import history
from overlaptop.tui.model.parts import overlap_style, parts_of
from overlaptop.tui.model.state import ViewState

_SCALED_RANKS = 16  # Ranks that set the scale of all histories: a job's ranks step together
_FAR = 4  # Steps longer than this multiple of the usual one do not set the scale: the job was stalled
_MEAN = " mean"
_BAR, _BAR_LEAST, _HISTORY, _HISTORY_MOST = 16, 6, 16, 40
"""Widths: the bar shrinks before columns of priority 1 are left out. Spare cells go to bar and history."""


class Scales:
    """The common scales of all rows, also of filtered ones: a filter must not change them."""

    def __init__(self, state: ViewState, before: "Scales | None" = None) -> None:
        """``before``: the present ones. The bars' full width stays while rows fill most of it, and the
        histories until one has a new column.
        """
        self.state, ranks = state, state.snapshot.ranks
        running = [view for view in ranks if not view.ended] or ranks
        bars_ns = [view.row.step_ns for view in running if view.row is not None]
        typical_ns = history.typical_step_ns(ranks)
        # Otherwise a whole trace may be shown, far longer than its steps, or the slowest step of a job.
        if state.moving and state.past_step is None:
            usual_ns = history.typical_step_ns(running) or 0
            bars_ns = [length_ns for length_ns in bars_ns if length_ns <= _FAR * usual_ns]
        self.bar_ns: int = history.bar_top_ns(max(bars_ns, default=0), before.bar_ns if before else 0)
        """Full width of the bars, a round figure; 0 before the first step."""
        self.unit = Unit.for_scale(max(self.bar_ns, round(typical_ns or 0)) or 1_000_000)
        self.steps_per_column = history.steps_per_column(typical_ns, moving=state.moving)
        scaled = [view for view in ranks[:_SCALED_RANKS] if view.history]
        newest = (view.history[-1].step // self.steps_per_column for view in scaled)
        states = ((view.rank, view.stale or view.ended) for view in scaled)
        self.newest_columns = self.steps_per_column, *zip(newest, states, strict=True)
        self.slowest_ns: dict[int, list[float | None]]
        """The slowest step of each column of the history, by rank, of the ranks that set its scale."""
        self.history_lines: dict[tuple[int, int, int | None], StyledLine]
        """Their histories, by rank, width and marked column."""
        if before is not None and before.newest_columns == self.newest_columns:
            self.slowest_ns, self.history_lines = before.slowest_ns, before.history_lines
        else:
            slowest = {view.rank: self.columns(view, _HISTORY_MOST) for view in scaled}
            self.slowest_ns = {rank: each.values(attrgetter("step_ns")) for rank, each in slowest.items()}
            self.history_lines = {}
        self.spark_top_ns = history.scale_top_ns(chain.from_iterable(self.slowest_ns.values()))
        self.failure = first_failure(ranks)
        self.are_means = any(view.mean is not None for view in ranks)

    def columns(self, view: RankView, width: int) -> history.Columns:
        return history.Columns(view.history, width, self.steps_per_column)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``title``, if it is drawn, and ``cell`` fit into the width they are given."""

    key: str
    title: str | Callable[[Scales, int], StyledLine]
    cell: Callable[[RankView, Scales, int], StyledLine]
    width: int
    priority: int  # The highest priority is left out first; 0 stays
    right: bool = True

    def header(self, scales: Scales, width: int) -> StyledLine:
        """Return the title, with the unit of all times in place of ``UNIT``."""
        if isinstance(self.title, str):
            return crop((dim(self.title.replace("UNIT", scales.unit.name)),), width)
        return self.title(scales, width)


def _time(name: str, style: TextStyle = TEXT) -> Callable[[RankView, Scales, int], StyledLine]:
    """``name``: one of MEASURES."""

    def cell(view: RankView, scales: Scales, _width: int) -> StyledLine:
        value_ns = MEASURES[name](view)
        return (Segment(scales.unit.text(value_ns), DIM if value_ns is None else style),)

    return cell


def _waiting(view: RankView, scales: Scales, _width: int) -> StyledLine:
    value_ns = waiting_ns(view)
    if value_ns is None:
        return (dim(UNKNOWN),)
    smallest_ns = scales.unit.size_ns / 100
    if not waiting_at_least(view, smallest_ns):
        return (Segment(scales.unit.text(value_ns)),)
    return (Segment(f"{AT_LEAST}{scales.unit.text(value_ns if value_ns >= smallest_ns else 0)}"),)


def _overlap(view: RankView, _scales: Scales, _width: int) -> StyledLine:
    overlap = MEASURES["overlap"](view)
    return (Segment(percent(overlap), overlap_style(overlap)),)


def _bar(view: RankView, scales: Scales, width: int) -> StyledLine:
    bar: StyledLine = ()
    if view.row is not None and view.row.measured:
        parts = parts_of(view.row, waiting_ns(view) or 0, scales.state.compute)
        bar = stacked_bar(parts, scales.bar_ns, width)
        if view.row.step_ns > scales.bar_ns:
            bar = (*crop(bar, width - 1), bold("▸"))
    elif view.last is not None:
        words = "not measured" if why_unmeasured([view]) else "not measured yet"
        bar = (dim("phases only" if view.info and view.info.detail_every == 0 else words),)
    return _with_condition(bar, view, scales, width)


def _on_axis(view: RankView, scales: Scales, width: int) -> StyledLine:
    """Return the parts of the timeline's step at their times."""
    step = scales.state.timeline
    bar: StyledLine = (dim("its timeline of this step is not here"),)
    if step is not None and view.rank in step.details:
        bar = lane(step.parts(view.rank), *step.bounds_ns(scales.state.viewport, view.rank), width)
    return _with_condition(bar, view, scales, width)


def _with_condition(bar: StyledLine, view: RankView, scales: Scales, width: int) -> StyledLine:
    said = condition(view, scales.failure)
    if not said:
        return bar
    text = next((each for each in said if len(each) <= width), said[-1])
    line = crop(faded(bar), max(0, width - len(text) - 2))
    color = condition_color(view, scales.failure)
    style = TextStyle(color, bold=color == "error")
    return (*line, Segment("  " if line else ""), *elided((Segment(text, style),), width))


def _history(view: RankView, scales: Scales, width: int) -> StyledLine:
    columns = scales.columns(view, width)
    marked = columns.column(scales.state.marked_step)
    key = view.rank, width, marked
    if (line := scales.history_lines.get(key)) is None:
        known = scales.slowest_ns.get(view.rank)
        values = columns.values(attrgetter("step_ns")) if known is None else known[-width:]
        line = chart(values, scales.spark_top_ns, 1, style=TextStyle("history"), marked=marked)[0]
        if known is not None:
            scales.history_lines[key] = line
    return line


def _history_header(scales: Scales, width: int) -> StyledLine:
    if not scales.spark_top_ns:
        return (dim("history"),)
    top = Unit.for_scale(scales.spark_top_ns)
    words = f"0–{top.brief(scales.spark_top_ns)} {top.name}"
    each = f" · max of {scales.steps_per_column}" if scales.steps_per_column > 1 else " · each step"
    return crop((dim(words + each if len(words + each) <= width else words),), width)


def _bar_header(scales: Scales, width: int) -> StyledLine:
    if not scales.bar_ns:
        return (dim("step"),)
    said = _MEAN if scales.are_means and width >= _BAR else ""
    space = width - len(said)
    return (*ruler(0, scales.bar_ns * space / width, space, scales.unit, line=True), dim(said))


def _axis(scales: Scales, width: int) -> StyledLine:
    if (step := scales.state.timeline) is None:
        return (dim("step"),)
    start_ns, end_ns = step.bounds_ns(scales.state.viewport)
    return ruler(start_ns, end_ns, width, Unit.for_scale(round(end_ns - start_ns)), line=True)


def rate_cell(known: Rate) -> StyledLine:
    """Return such as ``281 GB/s  59 %``, in fixed places."""
    if known.bytes_per_s is None:
        return (dim(f"{UNKNOWN:>9}{'' if known.peak_bytes_per_s is None else '      '}"),)
    share = whole_percent(known.share) if known.share is not None else ""
    return (Segment(f"{rate(known.bytes_per_s):>9}"), dim(f"{share:>6}"))


def _critical(view: RankView, scales: Scales, _width: int) -> StyledLine:
    slope = scales.state.slopes.get(view.rank)
    return (dim(UNKNOWN),) if slope is None else (Segment(f"{slope.centre:.2f}"),)


def _nvlink(view: RankView, _scales: Scales, _width: int) -> StyledLine:
    none = view.device is not None and view.device.nvlink_count == 0
    return (dim("none"),) if none else rate_cell(nvlink_rate(view))


def numa_cell(view: RankView) -> StyledLine:
    """Return the GPU's nearest node and a mark: ``0 ✓``."""
    if view.numa is None:
        return (dim(UNKNOWN),)
    if view.numa.state == "no gpu":
        return (dim("no GPU"),)
    node, (glyph, color) = near_node(view.numa), NUMA_MARKS[view.numa.state]
    return (Segment("" if node is None else f"{node} "), Segment(glyph, TextStyle(color, bold=True)))


# Headers have a spare cell for the mark of the sort column.
COLUMNS = (
    Column("rank", "rank", lambda view, _s, _w: (bold(str(view.rank)),), 5, 0),
    Column("node", "host", lambda v, _s, width: elided((dim(v.node),), width), 12, 2, right=False),
    Column("bar", _bar_header, _bar, _BAR, 0, right=False),
    Column("overlap", "overlap", _overlap, 8, 1),
    Column("exposed", "exposed UNIT", _time("exposed"), 11, 2),
    Column("waiting", "waiting UNIT", _waiting, 11, 4),
    Column("stall", "stall UNIT", _time("stall"), 9, 4),
    Column("idle", "idle UNIT", _time("idle"), 8, 7),
    Column("step", "step UNIT", _time("step", BOLD), 8, 3),
    Column("nvlink", "NVLink", _nvlink, 15, 6),
    Column("pcie", "PCIe", lambda view, _s, _w: rate_cell(pcie_rate(view)), 15, 9),
    Column("numa", "NUMA", lambda view, _s, _w: numa_cell(view), 6, 5),
    Column("history", _history_header, _history, _HISTORY, 8, right=False),
    Column("critical", "critical", _critical, 9, 1),
)
_EXTRA = ("node", "critical")
ON_AXIS = Column("bar", _axis, _on_axis, _BAR, 0, right=False)
"""In place of all columns but the first."""


def columns_for(ranks: Sequence[RankView], extra: Collection[str] = ()) -> tuple[Column, ...]:
    """Return the columns with a value for at least one rank. ``extra``: which to include of ``node``, each
    rank's host, and ``critical``, if some rank was delayed.
    """
    shown = (each for each in COLUMNS if each.key in extra or each.key not in _EXTRA)
    return tuple(each for each in shown if not ranks or has_data(each.key, ranks))


def layout(columns: Sequence[Column], width: int) -> list[tuple[Column, int]]:
    kept = list(columns)
    for least, shrunk in ((1, 0), (0, _BAR - _BAR_LEAST)):
        while _total_width(kept) - shrunk > width and (worst := max(c.priority for c in kept)) > least:
            kept.remove(next(c for c in reversed(kept) if c.priority == worst))
    widths = {column.key: column.width for column in kept}
    spare = width - _total_width(kept)
    if spare > 0 and "history" in widths:
        widths["history"] += (more := min(spare // 4, _HISTORY_MOST - _HISTORY))
        spare -= more
    widths["bar"] = max(_BAR_LEAST, _BAR + spare)
    return [(column, widths[column.key]) for column in kept]


def _total_width(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)
