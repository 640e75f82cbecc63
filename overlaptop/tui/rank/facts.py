"""Who a rank is and the figures of the step in its timeline."""

from __future__ import annotations

from overlaptop.fleet.snapshot import LinkState, RankView
from overlaptop.fleet.trouble import first_failure
from overlaptop.report.hosts import lost_since
from overlaptop.report.links import has_nvlink, has_pcie, numa_matters, nvlink_rate, pcie_rate
from overlaptop.report.order import sees_gaps, stalls_apart
from overlaptop.report.troubles import ending
from overlaptop.text import (
    AT_MOST,
    age,
    bounded,
    byte_count,
    count,
    duration,
    percent,
    rate,
    whole_percent,
)
from overlaptop.timeline.launch import launch_bound
from overlaptop.tui.draw.bars import stacked_bar
from overlaptop.tui.draw.segments import BOLD, DIM, Item, Segment, StyledLine, TextStyle, fit, wrap
from overlaptop.tui.overview.columns import numa_cell
from overlaptop.tui.overview.totals_line import overlap_ink
from overlaptop.tui.state import ViewState, step_name
from overlaptop.tui.timeline.parts import IDLE, PARTS, parts_of
from overlaptop.tui.view import JobView
from overlaptop.wire.messages import StepTotals

MOSTLY = 0.99


class RankFacts(JobView):
    """Identity, then the step's parts, then the bar they make."""

    def full_height(self, width: int) -> int:
        """Lines beyond which nothing more is drawn."""
        chosen, step = self.state.chosen, self.state.step
        if chosen is None or step is None:
            return 2
        return 2 + len(wrap(self._parts(chosen, step), width - 1, len(PARTS)))

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """As many of the lines as fit, the bar last."""
        chosen, step = self.state.chosen, self.state.step
        if chosen is None:
            return [(Segment(" no rank to show", DIM),)]
        news = Item(_news(chosen, self.state), 0 if chosen.node_lost else 3)
        identity = fit(_identity(chosen), [news], width)
        if step is None:
            return [identity, (Segment(" no measured step yet", DIM),)]
        lines = wrap(self._parts(chosen, step), width - 1, max(1, height - 2))
        bar = stacked_bar(parts_of(step), step.step_ns, width - 2, textured=self.look.textured)
        return [identity, *((Segment(" "), *line) for line in (*lines, bar))]

    def _parts(self, chosen: RankView, step: StepTotals) -> list[Item]:
        known = bounded(percent(step.overlap), AT_MOST, exact=sees_gaps(chosen))
        overlap = Segment(f"{known:<7}", overlap_ink(step.overlap, bold=True))
        what, number = step_name(step.step)
        parts: list[StyledLine] = [
            (Segment(what, DIM), Segment(number, BOLD), Segment("  overlap ", DIM), overlap)
        ]
        for key, value_ns in parts_of(step):
            known_ns = value_ns if key != IDLE.key or sees_gaps(chosen) else None
            glyph = PARTS[key].texture if self.look.textured else "█"
            name = (Segment(f"{glyph} ", TextStyle(key)), Segment(f"{PARTS[key].word} ", DIM))
            if known_ns:
                share = percent(known_ns / step.step_ns)
                parts.append(
                    (*name, Segment(f"{duration(known_ns):<7}", BOLD), Segment(f" {share:<7}", DIM))
                )
            else:
                parts.append((*name, Segment(duration(known_ns), DIM)))
        if stalls_apart(chosen):
            parts.append((Segment("stall ", DIM), Segment(f"{duration(step.stall_ns):<7}", BOLD)))
        moved = Segment(f" · {byte_count(step.comm_bytes)}", DIM)
        parts.append((Segment("collectives ", DIM), Segment(count(step.collectives), BOLD), moved))
        parts += _launching(step) + _naming(chosen)
        parts += _place(chosen)
        if chosen.dropped:
            parts.append((Segment("dropped ", DIM), Segment(count(chosen.dropped), TextStyle("warning"))))
        return [Item(part) for part in parts]


def _launching(step: StepTotals) -> list[StyledLine]:
    """How far the CPU was ahead at the step's end."""
    if step.launch_lead_ns is None:
        return []
    line: StyledLine = (Segment("lead ", DIM), Segment(f"{duration(step.launch_lead_ns):<7}", BOLD))
    if launch_bound(step.step_ns, step.launch_lead_ns, step.idle_ns):
        line = (*line, Segment(" launch-bound", TextStyle("warning", bold=True)))
    return [line]


def _naming(chosen: RankView) -> list[StyledLine]:
    """How much of the communication's time belongs to collectives that are known by name and bytes."""
    known = ((step.matched_ns, step.comm_kernels_ns) for step in reversed(chosen.history))
    matched_ns, kernels_ns = next(((m, k) for m, k in known if m is not None and k), (None, None))
    if matched_ns is None or not kernels_ns:
        return []
    share = matched_ns / kernels_ns
    return [
        (Segment("named ", DIM), Segment(percent(share), BOLD if share > MOSTLY else TextStyle("warning")))
    ]


def _place(chosen: RankView) -> list[StyledLine]:
    """Its links and its NUMA node, as far as anything is known of them; the Machine view has the rest."""
    parts: list[StyledLine] = []
    for name, there, known in (
        ("NVLink", has_nvlink(chosen), nvlink_rate(chosen)),
        ("PCIe", has_pcie(chosen), pcie_rate(chosen)),
    ):
        if there:
            share = Segment(f" {whole_percent(known.share):<5}", DIM)
            parts.append((Segment(f"{name} ", DIM), Segment(f"{rate(known.bytes_per_s):<9}", BOLD), share))
    if chosen.numa is not None and numa_matters(chosen):
        text = f" {chosen.numa.state}" if chosen.numa.state != "bound" else ""
        mark = numa_cell(chosen)
        parts.append((Segment("NUMA ", DIM), *mark, Segment(text, mark[-1].style)))
    return parts


def _identity(chosen: RankView) -> list[Item]:
    items = [Item((Segment(f" rank {chosen.rank}", BOLD),))]
    if (info := chosen.info) is not None:
        for name, value in (
            ("on", chosen.node), ("host", info.host), ("device", info.device), ("backend", info.backend),
            ("pid", _known(info.pid)), ("local rank", _known(info.local_rank)),
            ("torch", info.torch_version),
        ):  # fmt: skip
            if value:
                items.append(Item((Segment(f"{name} ", DIM), Segment(value)), len(items)))
    return items


def _known(number: int) -> str:
    return str(number) if number >= 0 else ""


def _news(chosen: RankView, state: ViewState) -> StyledLine:
    if chosen.ended:
        failure = first_failure(state.snapshot.ranks)
        blamed = failure is not None and chosen.rank in failure.ranks
        return (Segment(f"■ {ending(chosen, failure)} ", TextStyle("error") if blamed else DIM),)
    now_ns = state.paused_now_ns or state.snapshot.at_ns
    if lost := lost_since(chosen, state.snapshot, now_ns):
        return (Segment(f"○ {lost} ", TextStyle("warning")),)
    if state.snapshot.link is LinkState.TRACE:
        return ()
    if chosen.age_s is None:
        return (Segment("no step yet ", DIM),)
    news = f"newest step {age(chosen.age_s)} ago "
    if chosen.silent:
        return (Segment(f"○ silent: {news}", TextStyle("error", bold=True)),)
    return (Segment(f"○ stale: {news}", TextStyle("warning")) if chosen.stale else Segment(news, DIM),)
