"""Who a rank is and the figures of the step in its timeline."""

from __future__ import annotations

from overlaptop.fleet.snapshot import LinkState, RankView
from overlaptop.fleet.trouble import first_failure
from overlaptop.report.figures import exposed_in_words
from overlaptop.report.hosts import lost_since
from overlaptop.report.links import has_nvlink, has_pcie, numa_matters, nvlink_rate, pcie_rate
from overlaptop.report.order import sees_gaps, stalls_apart
from overlaptop.report.troubles import ending
from overlaptop.text import AT_MOST, age, bounded, byte_count, count, duration, percent, rate, whole_percent
from overlaptop.timeline.breakdown import launch_bound
from overlaptop.tui.draw.bars import stacked_bar
from overlaptop.tui.draw.segments import (
    BOLD,
    DIM,
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    fit,
    wrap,
)
from overlaptop.tui.overview.columns import numa_cell
from overlaptop.tui.overview.totals_line import overlap_ink
from overlaptop.tui.state import ViewState, step_name
from overlaptop.tui.timeline.parts import EXPOSED, IDLE, PARTS, parts_of
from overlaptop.tui.view import JobView
from overlaptop.wire.messages import StepTotals

MOSTLY = 0.99


class RankFacts(JobView):
    """Identity, then the step's parts, then the bar they make."""

    def full_height(self, width: int) -> int:
        chosen, step = self.state.chosen, self.state.step
        if chosen is None or step is None:
            return 2
        return 2 + len(wrap(self._parts(chosen, step), width - 1, len(PARTS)))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        chosen, step = self.state.chosen, self.state.step
        if chosen is None:
            return [(dim(" no rank to show"),)]
        news = Item(_news(chosen, self.state), 0 if chosen.node_lost else 3)
        identity = fit(_identity(chosen), [news], width)
        if step is None:
            return [identity, (dim(" no measured step yet"),)]
        lines = wrap(self._parts(chosen, step), width - 1, max(1, height - 2))
        waits = self.state.waits_of(chosen.rank)
        parts = parts_of(step, waits.exposed_wait_ns if waits is not None else 0)
        bar = stacked_bar(parts, step.step_ns, width - 2, textured=self.look.textured)
        return [identity, *((Segment(" "), *line) for line in (*lines, bar))]

    def _parts(self, chosen: RankView, step: StepTotals) -> list[Item]:
        known = bounded(percent(step.overlap), AT_MOST, exact=sees_gaps(chosen))
        overlap = Segment(f"{known:<7}", overlap_ink(step.overlap, bold=True))
        waits = self.state.waits_of(chosen.rank)
        what, number = step_name(step.step)
        parts: list[StyledLine] = [(dim(what), bold(number), dim("  overlap "), overlap)]
        for key, value_ns in parts_of(step):
            known_ns = value_ns if key != IDLE.key or sees_gaps(chosen) else None
            glyph = PARTS[key].texture if self.look.textured else "█"
            name = (Segment(f"{glyph} ", TextStyle(key)), dim(f"{PARTS[key].word} "))
            figures: StyledLine = (dim(duration(known_ns)),)
            if known_ns:
                figures = (bold(f"{duration(known_ns):<7}"), dim(f" {percent(known_ns / step.step_ns):<7}"))
            parts.append((*name, *figures))
            if key == EXPOSED.key and waits is not None and value_ns:
                parts.append((dim(exposed_in_words(waits)),))
        if stalls_apart(chosen):
            parts.append((dim("stall "), bold(f"{duration(step.stall_ns):<7}")))
        moved = dim(f" · {byte_count(step.comm_bytes)}")
        parts.append((dim("collectives "), bold(count(step.collectives)), moved))
        if step.launch_lead_ns is not None:
            slow = launch_bound(step.step_ns, step.launch_lead_ns, step.idle_ns)
            bound = (Segment(" launch-bound", TextStyle("warning", bold=True)),) if slow else ()
            parts.append((dim("lead "), bold(f"{duration(step.launch_lead_ns):<7}"), *bound))
        parts += _naming(chosen) + _links(chosen)
        if chosen.dropped:
            parts.append((dim("dropped "), Segment(count(chosen.dropped), TextStyle("warning"))))
        return [Item(part) for part in parts]


def _naming(chosen: RankView) -> list[StyledLine]:
    """How much of the communication's time belongs to collectives that are known by name and bytes."""
    known = ((step.matched_ns, step.comm_kernels_ns) for step in reversed(chosen.history))
    matched_ns, kernels_ns = next(((m, k) for m, k in known if m is not None and k), (None, None))
    if matched_ns is None or not kernels_ns:
        return []
    share = matched_ns / kernels_ns
    return [(dim("named "), Segment(percent(share), BOLD if share > MOSTLY else TextStyle("warning")))]


def _links(chosen: RankView) -> list[StyledLine]:
    """Its links and its NUMA node, as far as anything is known of them; the Machine view has the rest."""
    parts: list[StyledLine] = []
    for name, there, known in (
        ("NVLink", has_nvlink(chosen), nvlink_rate(chosen)),
        ("PCIe", has_pcie(chosen), pcie_rate(chosen)),
    ):
        if there:
            share = dim(f" {whole_percent(known.share):<5}")
            parts.append((dim(f"{name} "), bold(f"{rate(known.bytes_per_s):<9}"), share))
    if chosen.numa is not None and numa_matters(chosen):
        text = f" {chosen.numa.state}" if chosen.numa.state != "bound" else ""
        mark = numa_cell(chosen)
        parts.append((dim("NUMA "), *mark, Segment(text, mark[-1].style)))
    return parts


def _identity(chosen: RankView) -> list[Item]:
    items = [Item((bold(f" rank {chosen.rank}"),))]
    if (info := chosen.info) is not None:
        for name, value in (
            ("on", chosen.node), ("host", info.host), ("device", info.device), ("backend", info.backend),
            ("pid", str(max(info.pid, -1))), ("local rank", str(max(info.local_rank, -1))),
            ("torch", info.torch_version),
        ):  # fmt: skip
            if value not in ("", "-1"):
                items.append(Item((dim(f"{name} "), Segment(value)), len(items)))
    return items


def _news(chosen: RankView, state: ViewState) -> StyledLine:
    if chosen.ended:
        failure = first_failure(state.snapshot.ranks)
        blamed = failure is not None and chosen.rank in failure.ranks
        return (Segment(f"■ {ending(chosen, failure)} ", TextStyle("error") if blamed else DIM),)
    if state.past_step is not None:
        return ()
    now_ns = state.paused_now_ns or state.snapshot.at_ns
    if lost := lost_since(chosen, state.snapshot, now_ns):
        return (Segment(f"○ {lost} ", TextStyle("warning")),)
    if state.snapshot.link is LinkState.TRACE:
        return ()
    if chosen.age_s is None:
        return (dim("no step yet "),)
    news = f"newest step {age(chosen.age_s)} ago "
    if chosen.silent:
        return (Segment(f"○ silent: {news}", TextStyle("error", bold=True)),)
    return (Segment(f"○ stale: {news}", TextStyle("warning")) if chosen.stale else dim(news),)
