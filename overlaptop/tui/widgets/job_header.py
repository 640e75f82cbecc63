"""The job: its name, host, hardware and progress, and whether it is live."""

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath

from overlaptop.fleet.commands import FAILED
from overlaptop.fleet.notices import grouped, last_restart
from overlaptop.fleet.snapshot import HubState, Window
from overlaptop.fleet.trouble import trouble_of
from overlaptop.report import troubles
from overlaptop.report.figures import ranks_text
from overlaptop.report.hosts import HUB_GLYPHS, live_words
from overlaptop.text import age, byte_count, clock, count, duration, plural, printable, shortened
from overlaptop.tui.draw.layout import Item, fit, line_width
from overlaptop.tui.draw.segments import BOLD_WARNING, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.model.parts import PHASES
from overlaptop.tui.model.state import ViewState, step_name
from overlaptop.tui.widgets.view import JobView
from overlaptop.wire.commands import CHANGES
from overlaptop.wire.messages import RESTARTED, RankInfo

_WIDE = 90  # Narrower screens leave out how and when a job ended
_WIDER = 120  # Narrower screens leave out the script's folder


class JobHeader(JobView):
    """One line, and a second one if the height allows."""

    fades = False

    def draw(self, width: int, height: int) -> list[StyledLine]:
        lines = [_job_line(self.state, width, alone=height == 1)]
        if height > 1:
            lines.append(_source_line(self.state, width))
        return lines


def _job_line(state: ViewState, width: int, *, alone: bool) -> StyledLine:
    """``alone``: no other line shows the trouble."""
    snapshot, job = state.snapshot, state.snapshot.job
    program = Item((Segment("overlaptop", TextStyle("accent", bold=True)),), 6)
    facts: list[Item] = []
    if job is not None:
        infos, hosts = _infos(state), _hosts(state)
        sources = "" if state.starting else _sources(infos)
        measured = " · ".join(filter(None, (_most(info.backend for info in infos), sources)))
        ranks = (Segment(ranks_text(snapshot)), dim(f" · {hosts}" if hosts else ""))
        devices = _most(info.device for info in infos)
        facts = [Item(ranks, 4), Item((dim(devices),), 7), Item((dim(measured),), 5)]
    recorded = state.recorded_bytes
    marks = [
        *(["read-only"] if state.readonly else []),
        *(["◆ trials"] if state.trying else []),
        *([f"● rec {byte_count(recorded)}"] if recorded is not None else []),
    ]
    right = [Item((Segment("  ".join(marks), BOLD_WARNING),) if marks else ())]
    totals = snapshot.totals
    of_one = totals.window is Window.STEP
    step = totals.measured_step if of_one and totals.measured_step is not None else totals.step
    if step is not None and state.past_step is None:
        name, number = step_name(step)
        right.append(Item((dim(name), bold(number)), 3))
    if totals.step_ns is not None:
        length = bold(f"{duration(totals.step_ns):>7}")
        right.append(Item((length,) if of_one else (length, dim(" mean")), 2))
    right.append(Item(_hub_state(state, brief=width < _WIDE and not alone)))
    facts = [item for item in facts if item.line[0].text]
    if job is not None and job.script:
        names = PurePath(job.script).parts[-2 if width >= _WIDER else -1 :]
        facts.insert(0, Item((bold(shortened("/".join(names), width // 3)),), 1))
    return (Segment(" "), *fit([program, *facts], right, width - 1))


def _hub_state(state: ViewState, *, brief: bool) -> StyledLine:
    """``brief``: leave out why a job ended, and the time of day."""
    snapshot, trouble = state.snapshot, state.trouble_since or trouble_of(state.snapshot)
    if state.paused_at_ns is not None:
        words = "■ paused "
        if state.past_step is not None:
            ends_ns = [view.last.start_ns + view.last.step_ns for view in snapshot.ranks if view.last]
            when = f", {age((state.now_ns - max(ends_ns)) / 1e9)} ago" if ends_ns else ""
            words = f"← past step {count(state.past_step)}{when} "
        paused = Segment(words, BOLD_WARNING)
        if trouble is None:
            return (paused,)
        now = f"· {troubles.in_brief(trouble, state.now_ns)} "
        return (paused, Segment(now, TextStyle(troubles.color(trouble), bold=True)))
    glyph, color = HUB_GLYPHS[snapshot.hub_state]
    words = snapshot.hub_state.value
    if snapshot.hub_state is HubState.LIVE and snapshot.replaying:
        (glyph, color), words = HUB_GLYPHS[HubState.WAITING], "reading history"
    elif trouble is not None and snapshot.hub_state is HubState.LIVE:
        color, words = troubles.color(trouble), troubles.in_brief(trouble, snapshot.at_ns)
    elif snapshot.recorded and snapshot.hub_state is HubState.LIVE:
        words = f"recorded {clock(snapshot.at_ns)}"
    elif trouble is not None and snapshot.hub_state is HubState.ENDED:
        color = troubles.color(trouble)
        words = words if brief else f"{troubles.in_brief(trouble, snapshot.at_ns)}, {words}"
    if snapshot.hub_state not in (HubState.LIVE, HubState.TRACE) and snapshot.job is not None:
        since, ago = clock(snapshot.hub_since_ns), age((state.now_ns - snapshot.hub_since_ns) / 1e9)
        if snapshot.hub_state is HubState.ENDED:
            words += f" {ago} ago" if brief else f" at {since}, {ago} ago"
        else:
            words += f" since {since} ({ago})"
    if len(snapshot.nodes) > 1:
        words = f"{words} · {live_words(snapshot)}"
        if snapshot.hub_state is HubState.LIVE and any(node.lost for node in snapshot.nodes):
            glyph, stale = HUB_GLYPHS[HubState.STALE]
            color = stale if trouble is None else color
    return (Segment(f"{glyph} {words} ", TextStyle(color, bold=True)),)


def _source_line(state: ViewState, width: int) -> StyledLine:
    """Return the source of the figures; a lost connection or a pause comes first."""
    snapshot, warning, infos = state.snapshot, TextStyle("warning"), _infos(state)
    left: list[Item] = []
    if state.paused_at_ns is not None:
        since_s = (state.now_ns - state.paused_at_ns) / 1e9
        words = f" paused since {clock(state.paused_at_ns)} ({age(since_s)}): data is still being kept"
        if snapshot.recorded:
            words = f" paused at {clock(state.paused_at_ns)} of the recording"
        if state.past_step is not None:  # the line above names it
            words = " space: newest step, { }: other steps; all figures are of this step"
        left.append(Item((Segment(words, BOLD_WARNING),)))
    if (trouble := state.trouble_since or trouble_of(snapshot)) is not None:
        style = TextStyle(troubles.color(trouble), bold=True)
        said = troubles.wordings(trouble)
        words = next((each for each in said if line_width((Segment(each),)) + 2 <= width), said[-1])
        left.insert(0, Item((Segment(f" {words}", style),)))
    elif snapshot.hub_state is HubState.ENDED and all(view.ended for view in snapshot.ranks):
        left.append(Item((bold(f" {troubles.ended_well(snapshot.ranks)}"),)))
    if snapshot.hub_note:
        left.append(Item((Segment(f" {snapshot.hub_note}", warning),)))
    newest = next(iter(snapshot.commands[-1:]), None)
    if newest and not newest.done and newest.state != FAILED and newest.name not in CHANGES:
        # A change has its own line.
        left.append(Item((Segment(f" {newest.words}: ", warning), Segment(newest.state, BOLD_WARNING))))
    if (restart := last_restart(snapshot.notices)) is not None:
        left.append(Item((Segment(f" {RESTARTED} at {clock(restart.at_ns)}", warning),)))
        left.append(Item((Segment(" steps count from 0", warning),), 2))
    if not left and state.starting:
        left.append(Item((bold(" starting"), dim(f"  waiting for {state.starting}"))))
    elif not left and infos:
        # The line above names the source.
        if reason := _most(info.source_reason for info in infos):
            left.append(Item((dim(f" source {_sources(infos)}: {reason}"),)))
        if not state.exact:
            bound = "compute is an upper bound: gaps between kernels are not seen"
            if state.compute is PHASES:
                bound = "phases are seen, not kernels: overlap is an upper bound"
            left.append(Item((dim(bound if left else f" {bound}"),), 2))
    notices = grouped(snapshot.notices)
    levels = {notice.level for notice in notices}
    worst = next((level for level in ("error", "warning") if level in levels), "dim")
    told = (Segment(plural(len(notices), "notice"), TextStyle(worst)), dim(" (n)")) if notices else ()
    if trouble is not None:  # the trouble replaces the rest if both do not fit
        left[1:] = [item._replace(priority=2) for item in left[1:]]
    return fit(left, [Item((*told, Segment(" ")), 1 if trouble is not None else 0)], width)


def _infos(state: ViewState) -> list[RankInfo]:
    return [view.info for view in state.snapshot.ranks if view.info is not None]


def _hosts(state: ViewState) -> str:
    """Return the hosts; with several, the connections' states show their number."""
    if nodes := state.snapshot.nodes:
        return printable(nodes[0].name) if len(nodes) == 1 else ""
    hosts = sorted({info.host for info in _infos(state)})
    if len(hosts) > 1:
        return f"{len(hosts)} hosts"
    return hosts[0] if hosts else (state.snapshot.job.host if state.snapshot.job else "")


def _most(values: Iterable[str]) -> str:
    """Return the most common value, with the number of other values."""
    found = Counter(filter(None, values)).most_common()
    return f"{found[0][0]} +{len(found) - 1}" if len(found) > 1 else "".join(value for value, _ in found)


def _sources(infos: list[RankInfo]) -> str:
    counted = Counter(info.source for info in infos if info.source).most_common()
    return ", ".join(f"{source} on {n}" if len(counted) > 1 else source for source, n in counted)
