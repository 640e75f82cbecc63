"""A capture: its progress, its traces, and their figures beside the live ones."""

from collections.abc import Mapping

from overlaptop.fleet.commands import FAILED, CommandView, LiveOverlap
from overlaptop.fleet.records import BOUNDS
from overlaptop.fleet.snapshot import Snapshot
from overlaptop.report.hosts import places
from overlaptop.text import UNKNOWN, bounded, clock, count, percent, printable
from overlaptop.timeline import ratios
from overlaptop.tui.draw.layout import Item, fit, folded, paragraph
from overlaptop.tui.draw.segments import TEXT, Segment, StyledLine, TextStyle, bold, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.help import glossary
from overlaptop.tui.model.captures import TraceSums, sums_of
from overlaptop.tui.model.parts import overlap_style
from overlaptop.tui.widgets.prompt import LinePrompt
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import Page
from overlaptop.wire import commands
from overlaptop.wire.codec import WireError
from overlaptop.wire.commands import CAPTURE, ENDED_BADLY, WRITTEN, RankOutcome

_PLACES = 4  # Most folders that are listed
_DEFAULT_STEPS = "5"
_WHAT_IT_IS = (
    "All ranks run torch.profiler for some steps, from the same step on. Each writes a Chrome trace. The "
    "job goes on; these steps take longer, and other figures exclude them. The job needs --control."
)
_EXPLAINED = (
    "live: the agent's overlap in the steps just before. profiler: the same overlap in torch.profiler's "
    "trace of the captured steps, which it slows down",
    "the traces open in https://ui.perfetto.dev and chrome://tracing; `overlaptop analyze FOLDER` shows "
    "their steps. All other figures exclude the captured steps",
)
_BOUNDS = (
    "≤: without a GPU compute is an upper bound, and so is overlap. live counts a collective from where "
    "it is issued, profiler from where gloo takes it up",
)


class CaptureView(Page):
    """The newest capture."""

    def lines(self, width: int) -> list[StyledLine]:
        capture = _newest(self.state.snapshot)
        if capture is None:
            return [(bold(" No capture yet"),), (), *paragraph(_WHAT_IT_IS, width, TEXT)]
        read = self.dashboard.traces.get(capture.id, "")
        sums = {} if isinstance(read, str) else read
        table = Table(_columns(capture.live, sums), width)
        lines = [_asked(capture, width), *_state(capture, width)]
        for place in places(capture, self.state.snapshot.ranks)[:_PLACES]:
            lines += folded(place, width, TextStyle("accent", bold=True))
        if read and isinstance(read, str):
            lines += paragraph(read, width, TextStyle("warning"))
        exact = {"live": self.state.exact, "profiler": all(each.exact for each in sums.values())}
        names = {name: bounded(name, BOUNDS["overlap"], exact=sees) for name, sees in exact.items()}
        lines += [(), table.header(names), *map(table.row, capture.ranks), ()]
        bounds = () if exact["profiler"] else _BOUNDS
        return lines + [line for text in (*_EXPLAINED, *bounds) for line in paragraph(text, width)]


def _newest(snapshot: Snapshot) -> CommandView | None:
    """Return the newest capture; one that was refused as busy only if there is no other."""
    captures = [each for each in snapshot.commands if each.name == CAPTURE]
    return max(reversed(captures), key=lambda each: not each.busy, default=None)


def _asked(capture: CommandView, width: int) -> StyledLine:
    by = (dim("asked by "), Segment(capture.by)) if capture.by else ()
    at = (dim("at "), Segment(clock(capture.at_ns)))
    return fit([Item((bold(f" {capture.words}"),)), Item(at, 1), Item(by, 2)], [], width)


def _state(capture: CommandView, width: int) -> list[StyledLine]:
    if capture.state == FAILED:
        return paragraph(f"not made: {capture.reason}", width, TextStyle("error", bold=True))
    style = TextStyle("good" if capture.state == WRITTEN else "warning", bold=True)
    on = f" on step {count(capture.step)}" if capture.step is not None else ""
    return [(Segment(f" ● {printable(capture.state)}{on}", style),)]


def _columns(live: Mapping[int, LiveOverlap], sums: Mapping[int, TraceSums]) -> list[Column[RankOutcome]]:
    def measured(rank: RankOutcome) -> float | None:
        known = live.get(rank.rank)
        return known.overlap if known is not None else None

    def profiled(rank: RankOutcome) -> float | None:
        known = sums.get(rank.rank)
        return ratios.overlap(known.hidden_ns, known.comm_ns) if known is not None else None

    def state(rank: RankOutcome) -> Segment:
        color = "good" if rank.state == WRITTEN else "error" if rank.state in ENDED_BADLY else "text"
        return Segment(rank.state, TextStyle(color))

    def overlap(share: float | None) -> Segment:
        return Segment(percent(share), overlap_style(share, bold=True))

    def apart(rank: RankOutcome) -> str:
        own, other = measured(rank), profiled(rank)
        return UNKNOWN if own is None or other is None else f"{(own - other) * 100:+.1f} points"

    return [
        Column("rank", 5, lambda rank: bold(str(rank.rank)), right=False),
        Column("state", 9, state, right=False),
        Column("live", 8, lambda rank: overlap(measured(rank)), right=False),
        Column("profiler", 9, lambda rank: overlap(profiled(rank)), right=False),
        Column("apart", 12, apart, right=False),
    ]


class CaptureScreen(PageScreen[CaptureView]):
    """Shows the newest capture of any dashboard."""

    title_in_help = glossary.CAPTURE
    view_class = CaptureView

    def redraw(self, *, everything: bool = False) -> None:
        """Read the newest capture's traces once all are written, and draw."""
        capture, traces = _newest(self.state.snapshot), self.dashboard.traces
        if capture is not None and capture.state == WRITTEN and capture.id not in traces:
            traces[capture.id] = "reading the traces ..."
            self.app.run_worker(self._read(capture), exit_on_error=False)
        super().redraw(everything=everything)

    async def _read(self, capture: CommandView) -> None:
        self.dashboard.traces[capture.id] = await sums_of(capture)
        self.dashboard.on_change()

    async def ask_for_steps(self) -> None:
        """Ask for the number of steps. Escape closes a screen without a capture, too."""
        hint = "enter: start   esc: not now"
        await self.ask(
            LinePrompt("steps to capture ", _DEFAULT_STEPS, hint, self._capture, left=self._leave_if_empty)
        )

    def _leave_if_empty(self) -> None:
        if _newest(self.state.snapshot) is None:
            self.action_back()

    def _capture(self, words: str) -> str:
        if not words.strip().isdecimal():
            return "type a whole number of steps"
        try:
            fault = self.dashboard.session.send(commands.make(CAPTURE, {"steps": int(words)}))
        except (ValueError, WireError) as error:
            return str(error)
        self.dashboard.read()
        return fault
