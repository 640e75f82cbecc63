"""Which job to look at; and where none runs, which bundled workload to start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.message import Message

from overlaptop.launch.request import LaunchRequest
from overlaptop.text import age, printable
from overlaptop.tui.dashboard import Dashboard
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
from overlaptop.tui.keys import LIST_KEYS, bindings
from overlaptop.tui.screen import DashboardScreen, Heights
from overlaptop.tui.view import JobView
from overlaptop.tui.widgets.host_lines import host_status
from overlaptop.tui.widgets.key_bar import HELP_HINT, QUIT_HINT, KeyBar
from overlaptop.tui.workloads.asking import ask_to_start
from overlaptop.wire.endpoints import JobRecord
from overlaptop.workloads.catalog import Workload

HINTS = (
    ("enter", "open", "screen.open", "open"),
    ("↑ ↓", "choose", "screen.move(1)", "choose"),
    ("w", "workloads with options", "app.workloads", "options"),
    HELP_HINT,
    QUIT_HINT,
    ("t", "theme", "app.next_theme"),
)
Choice = JobRecord | Workload


class JobList(JobView):
    """Jobs, then workloads, with one cursor through both."""

    fades = False

    class Opened(Message):
        """A line was clicked."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.cursor = 0
        self.fault = ""
        """Why the last workload could not be started."""
        self._choice_at: dict[int, int] = {}

    @property
    def choices(self) -> list[Choice]:
        """What can be opened."""
        return [*self.dashboard.session.jobs, *self._workloads]

    @property
    def _workloads(self) -> Sequence[Workload]:
        options = self.dashboard.options
        return options.launcher.workloads if options.launcher is not None and not options.readonly else ()

    def draw(self, width: int, height: int) -> list[StyledLine]:
        """Two sections; scrolled so that the cursor is visible."""
        jobs, choices = self.dashboard.session.jobs, self.choices
        self.cursor = max(0, min(self.cursor, len(choices) - 1))
        lines = [*self._title(jobs, width), ()]
        self._choice_at = {}
        if jobs:
            nodes = self.state.snapshot.nodes
            where = "on this machine" if not nodes else f"on {len(nodes)} hosts"
            if len(nodes) == 1:
                where = f"on {printable(nodes[0].name)}"
            lines.append((bold(f" {len(jobs)} job{'s' * (len(jobs) != 1)} {where}"),))
            for index, job in enumerate(jobs):
                self._choice_at[len(lines)] = index
                lines.append(self._line(index, _job_items(job, self.state.snapshot.at_ns), width))
            lines.append(())
        if len(choices) > len(jobs):
            lines.append(self._how_to_start(width))
            for index, workload in enumerate(choices[len(jobs) :], len(jobs)):
                assert isinstance(workload, Workload)
                self._choice_at[len(lines)] = index
                items = [Item((bold(f"{workload.name:<17} "), dim(workload.summary)))]
                lines.append(self._line(index, items, width))
            lines.append(())
        if self.fault:
            lines += [*paragraph(printable(self.fault), width, TextStyle("warning"), rows=4), ()]
        if self.state.snapshot.nodes:
            lines += [*self._hosts(width), ()]
        if not jobs:
            lines += _how_to(width)
        row = next((y for y, index in self._choice_at.items() if index == self.cursor), 0)
        first = max(0, min(row - height + 2, len(lines) - height)) if row >= height else 0
        self._choice_at = {y - first: index for y, index in self._choice_at.items()}
        return lines[first:]

    def on_click(self, event: events.Click) -> None:
        """Choose, and open at the second click."""
        index = self._choice_at.get(event.y)
        if index is None:
            return
        self.cursor = index
        self.redraw()
        if event.chain >= 2:
            self.post_message(self.Opened(self.choices[index]))

    def _hosts(self, width: int) -> list[StyledLine]:
        """The connections to them, and why one is down."""
        snapshot = self.state.snapshot
        lines: list[StyledLine] = [(bold(" hosts"), dim("  H: more"))]
        lines += [
            elided((Segment("   "), *host_status(node, snapshot.at_ns)), width) for node in snapshot.nodes
        ]
        return lines

    def _how_to_start(self, width: int) -> StyledLine:
        launcher = self.dashboard.options.launcher
        ends = self.dashboard.running
        there = launcher.hosts[0] if launcher is not None and launcher.hosts else ""
        items = [Item((bold(f" start a bundled workload{there and f' on {there}'}"),))]
        if ends:
            items.append(Item((Segment(f"in place of {ends}", TextStyle("warning")),)))
        return fit([*items, Item((dim("w: with options of your own"),), 1)], [], width, "  ")

    def _title(self, jobs: tuple[JobRecord, ...], width: int) -> list[StyledLine]:
        """The name, and what is going on: beside it where that fits, else below."""
        name = Segment(" overlaptop", TextStyle("accent", bold=True))
        waiting = "choose a job" if jobs else "waiting for a job"
        words = printable(self.dashboard.launch.message or self.state.snapshot.link_note or waiting)
        message = Segment(f"   {words}", TextStyle("warning"))
        if line_width((name, message)) < width:
            return [(name, message)]
        return [(name,), *paragraph(words, width, message.style, rows=4)]

    def _line(self, index: int, items: list[Item], width: int) -> StyledLine:
        cursor = index == self.cursor
        line = fit(items, [], width - 3)
        mark = Segment(" ▸ " if cursor else "   ", TextStyle("accent", bold=True))
        return on((mark, *line), "cursor") if cursor else (mark, *line)


class JobsScreen(DashboardScreen):
    """Opens by itself where there is no job, or more than one."""

    title_in_help = JOBS
    BINDINGS: ClassVar = bindings(LIST_KEYS)

    def __init__(self, dashboard: Dashboard, opened_at: str | None) -> None:
        super().__init__(dashboard)
        self.opened_at = opened_at
        """The job that was on the screen before; the list goes when there is another one."""
        self._list = JobList(dashboard)
        self._keys = KeyBar(dashboard, HINTS)

    def heights(self, width: int, height: int) -> Heights:  # noqa: ARG002
        """All for the list."""
        foot = 1 if height >= 4 else 0
        return ((self._list, height - foot, 0), (self._keys, foot, 0))

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._list.cursor = max(0, self._list.cursor + rows)
        self._list.redraw()

    async def action_open(self) -> None:
        """Look at the job, or start the workload."""
        choices = self._list.choices
        if choices:
            await self._open(choices[self._list.cursor])

    async def on_job_list_opened(self, message: JobList.Opened) -> None:
        """A line was clicked twice."""
        await self._open(message.choice)

    def action_back(self) -> None:
        """To the job on the screen, where there is one."""
        if self.state.snapshot.job is not None:
            super().action_back()

    async def _open(self, choice: Choice) -> None:
        if isinstance(choice, JobRecord):
            self.dashboard.open_job(choice.job)
            await self.run_action("app.overview")
        else:
            await ask_to_start(self, LaunchRequest(choice.name), self._start)

    async def _start(self, request: LaunchRequest) -> None:
        fault = await self.dashboard.start(request)
        self._list.fault = f"{request.workload} cannot be started: {fault}" if fault else ""
        self.redraw()


def _job_items(job: JobRecord, now_ns: int) -> list[Item]:
    running = age(max(0, now_ns - job.started_ns) / 1e9)
    return [
        Item((bold(f"{job.script:<24}"),)),
        Item((Segment(f"{job.world_size} rank{'s' * (job.world_size != 1)}"), dim(f" · {job.host}")), 1),
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
