"""The choice of a job; if none runs, of a bundled workload to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events

from overlaptop.jobs import last_end
from overlaptop.jobs.record import JobRecord
from overlaptop.launch.request import LaunchRequest
from overlaptop.report.troubles import of_last
from overlaptop.text import age, plural, printable
from overlaptop.tui.draw.segments import (
    Item,
    Segment,
    StyledLine,
    TextStyle,
    bold,
    dim,
    elided,
    fit,
    line_width,
    on,
    paragraph,
)
from overlaptop.tui.help.glossary import JOBS
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import LIST_KEYS, bindings
from overlaptop.tui.widgets.host_lines import host_status
from overlaptop.tui.widgets.page import PageScreen
from overlaptop.tui.widgets.view import JobView
from overlaptop.workloads.catalog import Workload

Choice = JobRecord | Workload

FAILED_NS = 600_000_000_000
"""How long the last failed job is named; --list shows it even later."""


class JobList(JobView):
    """Jobs, then workloads, with one cursor for both."""

    fades = False

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.cursor = 0
        self.fault = ""
        self._choice_at: dict[int, int] = {}

    @property
    def choices(self) -> list[Choice]:
        return [*self.dashboard.session.jobs, *self._workloads]

    @property
    def _workloads(self) -> Sequence[Workload]:
        options = self.dashboard.options
        return options.launcher.workloads if options.launcher is not None and not options.readonly else ()

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """Jobs, hosts and workloads; scrolled so that the cursor is visible."""
        jobs, choices, snapshot = self.dashboard.session.jobs, self.choices, self.state.snapshot
        self.cursor = max(0, min(self.cursor, len(choices) - 1))
        lines = [*self._title(jobs, width), ()]
        self._choice_at = {}
        if jobs:
            hosts = f" on {len(snapshot.nodes)} hosts" if snapshot.nodes else " on this machine"
            if len(snapshot.nodes) == 1:
                hosts = f" on {printable(snapshot.nodes[0].name)}"
            lines.append((bold(f" {plural(len(jobs), 'job')}{hosts}"),))
            for index, job in enumerate(jobs):
                self._choice_at[len(lines)] = index
                lines.append(self._line(index, _job_items(job, snapshot.at_ns), width))
            lines.append(())
        elif not snapshot.nodes and (words := _failed_lately(snapshot.at_ns)):
            lines += [*paragraph(words, width, TextStyle("warning"), rows=4), ()]
        if self.fault:
            lines += [*paragraph(printable(self.fault), width, TextStyle("warning"), rows=4), ()]
        if snapshot.nodes:
            lines.append((bold(" hosts"), dim("  H: more")))
            for node in snapshot.nodes:
                lines.append(elided((Segment("   "), *host_status(node, snapshot.at_ns)), width))
            lines.append(())
        if len(choices) > len(jobs):
            lines.append(self._how_to_start(width))
            for index, workload in enumerate(choices[len(jobs) :], len(jobs)):
                assert isinstance(workload, Workload)
                self._choice_at[len(lines)] = index
                items = [Item((bold(f"{workload.name:<17} "), dim(workload.summary)))]
                lines.append(self._line(index, items, width))
            lines.append(())
        if not jobs:
            lines += _how_to(width)
        row = next((y for y, index in self._choice_at.items() if index == self.cursor), 0)
        first = max(0, min(row - height + 2, len(lines) - height)) if row >= height else 0
        self._choice_at = {y - first: index for y, index in self._choice_at.items()}
        return lines[first:]

    def move(self, lines: int) -> None:
        self.cursor = max(0, self.cursor + lines)
        self.redraw()

    async def on_click(self, event: events.Click) -> None:
        if event.y in self._choice_at:
            self.cursor = self._choice_at[event.y]
            self.redraw()
            if event.chain >= 2:
                await self.screen.run_action("screen.open")

    def _how_to_start(self, width: int) -> StyledLine:
        items = [Item((bold(" start a bundled workload"),))]
        if ends := self.dashboard.running:
            items.append(Item((Segment(f"in place of {ends}", TextStyle("warning")),)))
        return fit([*items, Item((dim("w: with options of your own"),), 1)], [], width, "  ")

    def _title(self, jobs: tuple[JobRecord, ...], width: int) -> list[StyledLine]:
        """Return the name, and the state beside it if it fits, else below."""
        name = Segment(" overlaptop", TextStyle("accent", bold=True))
        waiting = "choose a job" if jobs else "waiting for a job"
        words = printable(self.dashboard.launch.message or self.state.snapshot.hub_note or waiting)
        message = Segment(f"   {words}", TextStyle("warning"))
        if line_width((name, message)) < width:
            return [(name, message)]
        return [(name,), *paragraph(words, width, message.style, rows=4)]

    def _line(self, index: int, items: list[Item], width: int) -> StyledLine:
        cursor = index == self.cursor
        line = fit(items, [], width - 3)
        mark = Segment(" ▸ " if cursor else "   ", TextStyle("accent", bold=True))
        return on((mark, *line), "cursor") if cursor else (mark, *line)


class JobsScreen(PageScreen):
    """Opens by itself if there is no job, or more than one."""

    title_in_help = JOBS
    BINDINGS: ClassVar = bindings(LIST_KEYS)

    def __init__(self, dashboard: Dashboard, opened_at: str | None) -> None:
        self._list = JobList(dashboard)
        super().__init__(dashboard, self._list)
        self.opened_at = opened_at
        """The previous job; the list closes when another one is shown."""

    async def action_open(self) -> None:
        choices = self._list.choices
        if not choices:
            return
        choice = choices[self._list.cursor]
        if isinstance(choice, JobRecord):
            self.dashboard.open_job(choice.job)
            await self.run_action("app.overview")
        else:
            await self.ask_to_start(LaunchRequest(choice.name), self._start)

    def action_back(self) -> None:
        """Go back to the watched job, if there is one."""
        if self.state.snapshot.job is not None:
            super().action_back()

    async def _start(self, request: LaunchRequest) -> None:
        fault = await self.dashboard.start(request)
        self._list.fault = f"{request.workload} cannot be started: {fault}" if fault else ""
        self.redraw()


def _failed_lately(now_ns: int) -> str:
    """Return how the last job here failed; empty: it did not, or longer than FAILED_NS ago."""
    last = last_end.read()
    if last is None or now_ns - last.ended_ns > FAILED_NS or not any(end.failed for end in last.ends):
        return ""
    return of_last(last, now_ns)


def _job_items(job: JobRecord, now_ns: int) -> list[Item]:
    running = age(max(0, now_ns - job.started_ns) / 1e9)
    return [
        Item((bold(f"{job.script:<24}"),)),
        Item((Segment(plural(job.world_size, "rank")), dim(f" · {job.host}")), 1),
        Item((dim("ended"),) if job.ended else (dim("running "), Segment(running)), 2),
        Item((dim(job.job),), 3),
        Item((dim(job.cwd),), 4),
    ]


def _how_to(width: int) -> list[StyledLine]:
    command = "torchrun --nproc-per-node=2 -m overlaptop.agent train.py"
    lines: list[StyledLine] = [
        (bold(" watch a job of your own"), dim("  it is found as soon as it runs")),
        (Segment(f"   {command}", TextStyle("accent")),),
    ]
    return lines if width >= 30 else lines[:1]
