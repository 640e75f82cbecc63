"""All facts about one rank: identity, the figures of a step, its timeline."""

from typing import ClassVar

from overlaptop.fleet.records import BOUNDS
from overlaptop.fleet.snapshot import HubState, RankView
from overlaptop.fleet.trouble import first_failure
from overlaptop.report.figures import exposed_text
from overlaptop.report.hosts import lost_since
from overlaptop.report.links import has_nvlink, has_pcie, numa_matters, nvlink_rate, pcie_rate
from overlaptop.report.order import sees_gaps, stalls_apart
from overlaptop.report.troubles import condition, condition_color
from overlaptop.report.who_is_late import why_unmeasured
from overlaptop.text import age, bounded, byte_count, count, duration, percent, rate, whole_percent
from overlaptop.timeline.overlap import launch_bound
from overlaptop.tui.draw.bars import stacked_bar
from overlaptop.tui.draw.layout import Item, fit, wrap
from overlaptop.tui.draw.segments import BOLD, DIM, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.help.glossary import RANK
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import RANK_KEYS, TIMELINE_KEYS, bindings
from overlaptop.tui.model.parts import EXPOSED, IDLE, PARTS, overlap_style, parts_of
from overlaptop.tui.model.state import ViewState, step_name
from overlaptop.tui.overview.columns import numa_cell
from overlaptop.tui.timeline.collectives import Collectives
from overlaptop.tui.timeline.history_chart import HistoryChart
from overlaptop.tui.timeline.timeline import Timeline, TimelineScreen
from overlaptop.tui.widgets.job_header import JobHeader
from overlaptop.tui.widgets.view import JobView
from overlaptop.wire.messages import StepTotals

MOSTLY = 0.99
_MOST_LINES = ((24, 8), (12, 4), (0, 1))  # By the height of the screen
_ORDER = ("exposed", "hidden", "compute", "phases", "fused", "copy", "idle")
"""Most important first: a small screen does not fit all."""


class RankFacts(JobView):
    """Identity, then the step's parts, then their bar."""

    def full_height(self, width: int) -> int:
        selected, step = self.state.selected, self.state.step
        if selected is None or step is None:
            return 2
        most = next(most for height, most in _MOST_LINES if self.app.size.height >= height)
        return min(most, 2 + len(wrap(self._parts(selected, step), width - 1, len(PARTS))))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        selected, step = self.state.selected, self.state.step
        if selected is None:
            return [(dim(" no rank to show"),)]
        news = Item(_news(selected, self.state), 0 if selected.node_lost else 3)
        identity = fit(_identity(selected), [news], width)
        if step is None:
            return [identity, (dim(f" {why_unmeasured([selected]) or 'no measured step yet'}"),)]
        lines = wrap(self._parts(selected, step), width - 1, max(1, height - 2))
        waits = self.state.waits_of(selected.rank)
        parts = parts_of(step, waits.exposed_wait_ns if waits is not None else 0, self.state.compute)
        bar = stacked_bar(parts, step.step_ns, width - 2)
        return [identity, *((Segment(" "), *line) for line in (*lines, bar))]

    def _parts(self, selected: RankView, step: StepTotals) -> list[Item]:
        known = bounded(percent(step.overlap), BOUNDS["overlap"], exact=sees_gaps(selected))
        overlap = Segment(f"{known:<7}", overlap_style(step.overlap, bold=True))
        waits = self.state.waits_of(selected.rank)
        what, number = step_name(step.step)
        parts: list[StyledLine] = [(dim(what), bold(number), dim("  overlap "), overlap)]
        spent = parts_of(step, compute=self.state.compute)
        for key, value_ns in sorted(spent, key=lambda part: _ORDER.index(part[0])):
            known_ns = value_ns if key != IDLE.key or sees_gaps(selected) else None
            name = (Segment("█", TextStyle(key, key)), dim(f" {PARTS[key].word} "))
            figure = duration(known_ns)
            figures: StyledLine = (dim(figure),)
            if known_ns:
                figures = (bold(f"{figure:<7}"), dim(f" {percent(known_ns / step.step_ns):<7}"))
            parts.append((*name, *figures))
            if key == EXPOSED.key and waits is not None and value_ns:
                parts.append((dim(exposed_text(waits)),))
        if stalls_apart(selected):
            parts.append((dim("stall "), bold(f"{duration(step.stall_ns):<7}")))
        moved = dim(f" · {byte_count(step.comm_bytes)}")
        parts.append((dim("collectives "), bold(count(step.collectives)), moved))
        if step.launch_lead_ns is not None:
            slow = launch_bound(step.step_ns, step.launch_lead_ns, step.idle_ns, step.host_ns)
            bound = (Segment(" launch-bound", TextStyle("warning", bold=True)),) if slow else ()
            parts.append((dim("lead "), bold(f"{duration(step.launch_lead_ns):<7}"), *bound))
        parts += _naming(step, selected) + _links(selected)
        if selected.dropped:
            parts.append((dim("dropped "), Segment(count(selected.dropped), TextStyle("warning"))))
        return [Item(part) for part in parts]


def _naming(step: StepTotals, selected: RankView) -> list[StyledLine]:
    """Return the share of communication time with a known name; a dash if not looked up in this step."""
    if all(each.matched_ns is None for each in (step, *selected.history)):
        return []
    matched_ns, kernels_ns = step.matched_ns, step.comm_kernels_ns
    share = matched_ns / kernels_ns if matched_ns is not None and kernels_ns else None
    style = DIM if share is None else BOLD if share > MOSTLY else TextStyle("warning")
    return [(dim("named "), Segment(percent(share), style))]


def _links(selected: RankView) -> list[StyledLine]:
    parts: list[StyledLine] = []
    for name, there, known in (
        ("NVLink", has_nvlink(selected), nvlink_rate(selected)),
        ("PCIe", has_pcie(selected), pcie_rate(selected)),
    ):
        if there:
            share = dim(f" {whole_percent(known.share):<5}")
            parts.append((dim(f"{name} "), bold(f"{rate(known.bytes_per_s):<9}"), share))
    if selected.numa is not None and numa_matters(selected):
        text = f" {selected.numa.state}" if selected.numa.state != "bound" else ""
        mark = numa_cell(selected)
        parts.append((dim("NUMA "), *mark, Segment(text, mark[-1].style)))
    return parts


def _identity(selected: RankView) -> list[Item]:
    items = [Item((bold(f" rank {selected.rank}"),))]
    if (info := selected.info) is not None:
        for name, value in (
            ("on", selected.node), ("host", info.host), ("device", info.device), ("backend", info.backend),
            ("pid", str(max(info.pid, -1))), ("local rank", str(max(info.local_rank, -1))),
            ("torch", info.torch_version),
        ):  # fmt: skip
            if value not in ("", "-1"):
                items.append(Item((dim(f"{name} "), Segment(value)), len(items)))
    return items


def _news(selected: RankView, state: ViewState) -> StyledLine:
    if state.past_step is None and (lost := lost_since(selected, state.snapshot, state.now_ns)):
        return (Segment(f"○ {lost} ", TextStyle("warning")),)
    failure = first_failure(state.snapshot.ranks)
    if said := condition(selected, failure):
        return (Segment(f"{said[0]} ", TextStyle(condition_color(selected, failure))),)
    if state.past_step is not None or state.snapshot.hub_state is HubState.TRACE:
        return ()
    return (dim(f"newest step {age(selected.age_s)} ago "),)


class RankScreen(TimelineScreen):
    """The selected rank: facts, timeline, collectives, history."""

    title_in_help = RANK
    BINDINGS: ClassVar = bindings((*RANK_KEYS, *TIMELINE_KEYS))

    def __init__(self, dashboard: Dashboard) -> None:
        views = (JobHeader, RankFacts, Timeline, Collectives, HistoryChart)
        super().__init__(dashboard, *(view(dashboard) for view in views))

    def action_next_rank(self, rows: int) -> None:
        self.state.move(rows)
