"""The job: what it is, where and on what it runs, how far it is, and whether it is live."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from overlaptop.fleet.commands import FAILED
from overlaptop.fleet.notices import grouped
from overlaptop.fleet.snapshot import LinkState
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report import troubles
from overlaptop.report.hosts import LINK_GLYPHS, live_words
from overlaptop.text import age, clock, duration, printable
from overlaptop.tui.draw.segments import Item, Segment, StyledLine, TextStyle, bold, dim, fit, joined
from overlaptop.tui.state import ViewState, step_name
from overlaptop.tui.view import JobView
from overlaptop.wire.messages import RankInfo


class JobHeader(JobView):
    """One line, and a second one where there is height for it."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """The job's line; then how it is measured, or what is wrong."""
        lines = [_job_line(self.state, width)]
        if height > 1:
            lines.append(_source_line(self.state, width))
        return lines


def _job_line(state: ViewState, width: int) -> StyledLine:
    snapshot, job = state.snapshot, state.snapshot.job
    left = [Item((Segment("overlaptop", TextStyle("accent", bold=True)),), 6)]
    if job is not None:
        script = job.script if width >= 110 else PurePath(job.script).name
        left.append(Item((bold(script),), 1))
        left.append(
            Item(
                (
                    Segment(f"{job.world_size} rank{'s' * (job.world_size != 1)}"),
                    dim(f" · {hosts}" if (hosts := _hosts(state)) else ""),
                ),
                4,
            )
        )
        infos = _infos(state)
        left.append(Item((dim(_most(info.device for info in infos)),), 7))
        sources = "" if state.starting else _sources(infos)
        measured = " · ".join(filter(None, (_most(info.backend for info in infos), sources)))
        left.append(Item((dim(measured),), 5))
    marks: StyledLine = (Segment("read-only", TextStyle("warning", bold=True)),) if state.readonly else ()
    if state.searching:
        marks = joined([marks, (Segment(f"◆ {state.searching}", TextStyle("warning", bold=True)),)], "  ")
    step: StyledLine = ()
    if snapshot.totals.step is not None:
        name, number = step_name(snapshot.totals.step)
        step = (dim(name), bold(number))
    time_ns = snapshot.totals.step_ns
    time = () if time_ns is None else (bold(f"{duration(time_ns):>7}"),)
    line = fit([item for item in left if item.line and item.line[0].text],
               [Item(marks), Item(step, 3), Item(time, 2), Item(_link(state))], width - 1)  # fmt: skip
    return (Segment(" "), *line)


def _link(state: ViewState) -> StyledLine:
    snapshot = state.snapshot
    glyph, color = LINK_GLYPHS[snapshot.link]
    words = snapshot.link.value
    trouble = trouble_of(snapshot)
    if snapshot.link is LinkState.LIVE and snapshot.replaying:
        (glyph, color), words = LINK_GLYPHS[LinkState.WAITING], "reading history"
    elif trouble is not None and snapshot.link is LinkState.LIVE:
        color, words = troubles.color(trouble), troubles.in_brief(trouble, snapshot.at_ns)
    elif trouble is not None and snapshot.link is LinkState.ENDED:
        color = troubles.color(trouble)
    if snapshot.link not in (LinkState.LIVE, LinkState.TRACE) and snapshot.job is not None:
        now_ns = state.paused_now_ns or snapshot.at_ns
        words += f" since {clock(snapshot.link_since_ns)} ({age((now_ns - snapshot.link_since_ns) / 1e9)})"
    if len(snapshot.nodes) > 1:
        words = f"{words} · {live_words(snapshot)}"
        if snapshot.link is LinkState.LIVE and any(node.lost for node in snapshot.nodes):
            glyph, stale = LINK_GLYPHS[LinkState.STALE]
            color = stale if trouble is None else color
    return (Segment(f"{glyph} {words} ", TextStyle(color, bold=True)),)


def _source_line(state: ViewState, width: int) -> StyledLine:
    """How the figures come about; a lost connection or a pause comes first, being more urgent."""
    snapshot = state.snapshot
    left: list[Item] = []
    if state.paused_at_ns is not None:
        since_s = ((state.paused_now_ns or snapshot.at_ns) - state.paused_at_ns) / 1e9
        words = f" paused since {clock(state.paused_at_ns)} ({age(since_s)}): data is still being kept"
        left.append(Item((Segment(words, TextStyle("warning", bold=True)),)))
    if (trouble := trouble_of(snapshot)) is not None:
        left.append(
            Item((Segment(f" {troubles.in_full(trouble)}", TextStyle(troubles.color(trouble), bold=True)),))
        )
    if snapshot.link_note:
        left.append(Item((Segment(f" {snapshot.link_note}", TextStyle("warning")),)))
    left += _under_way(state)
    infos = _infos(state)
    if not left and state.starting:
        left.append(Item((bold(" starting"), dim(f"  waiting for {state.starting}"))))
    elif not left and infos:
        # The source itself is in the line above.
        if reason := _most(info.source_reason for info in infos):
            left.append(Item((dim(f" {_sources(infos)}: {reason}"),)))
        if not state.exact:
            bound = "compute is an upper bound: gaps between kernels are not seen"
            left.append(Item((dim(bound if left else f" {bound}"),), 2))
    return fit(left, [Item((*_notices(state), Segment(" ")))], width)


def _under_way(state: ViewState) -> list[Item]:
    """Commands under way; changes of knobs have places of their own."""
    newest = state.snapshot.commands[-1:]
    return [
        Item(
            (
                Segment(f" {each.words}: ", TextStyle("warning")),
                Segment(each.state, TextStyle("warning", bold=True)),
            )
        )
        for each in newest
        if not each.done and each.state != FAILED and not each.knob
    ]


def _notices(state: ViewState) -> StyledLine:
    notices = grouped(state.snapshot.notices)
    serious = sum(notice.level in ("warning", "error") for notice in notices)
    if not notices:
        return ()
    worst = "error" if any(n.level == "error" for n in notices) else "warning" if serious else "dim"
    return (Segment(f"{len(notices)} notice{'s' * (len(notices) != 1)}", TextStyle(worst)), dim(" (n)"))


def _infos(state: ViewState) -> list[RankInfo]:
    return [view.info for view in state.snapshot.ranks if view.info is not None]


def _hosts(state: ViewState) -> str:
    """Of several that are watched, the link's state gives the number."""
    if nodes := state.snapshot.nodes:
        return printable(nodes[0].name) if len(nodes) == 1 else ""
    hosts = sorted({info.host for info in _infos(state)})
    if len(hosts) > 1:
        return f"{len(hosts)} hosts"
    return hosts[0] if hosts else (state.snapshot.job.host if state.snapshot.job else "")


def _most(values: object) -> str:
    """What most ranks say, with the number of others."""
    counted = Counter(value for value in values if value)  # type: ignore[attr-defined]
    if not counted:
        return ""
    (value, _), others = counted.most_common(1)[0], len(counted) - 1
    return f"{value} +{others}" if others else str(value)


def _sources(infos: list[RankInfo]) -> str:
    counted = Counter(info.source for info in infos if info.source)
    if len(counted) <= 1:
        return next(iter(counted), "")
    return ", ".join(f"{source} on {n}" for source, n in counted.most_common())
