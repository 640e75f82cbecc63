"""The choice of a job; if none runs, how to start one."""

from typing import ClassVar

from overlaptop.jobs import last_end
from overlaptop.jobs.record import JobRecord
from overlaptop.report.troubles import of_last
from overlaptop.text import age, plural, printable
from overlaptop.tui.draw.layout import Item, elided, fit, hanging, paragraph
from overlaptop.tui.draw.segments import KEY, Segment, StyledLine, TextStyle, bold, dim, on
from overlaptop.tui.help.glossary import JOBS
from overlaptop.tui.model.dashboard import Dashboard
from overlaptop.tui.model.keys import LIST_KEYS, bindings
from overlaptop.tui.widgets.host_lines import host_status
from overlaptop.tui.widgets.screen import PageScreen
from overlaptop.tui.widgets.view import RowList

FAILED_NS = 600_000_000_000  # How long the last failed job is named; --list shows it even later
_OWN_JOB = "torchrun --nproc-per-node=2 -m overlaptop.agent train.py"


class JobList(RowList[JobRecord]):
    """The jobs, the hosts, and without a job how to start one."""

    fades = False

    @property
    def rows(self) -> tuple[JobRecord, ...]:
        return self.dashboard.session.jobs

    def key(self, row: JobRecord) -> object:
        return row.job

    def draw(self, width: int, height: int) -> list[StyledLine]:
        jobs, snapshot = self.rows, self.state.snapshot
        lines = [*self._title(width), ()]
        below = self._hosts(width)
        if jobs:
            names = [printable(node.name) for node in snapshot.nodes]
            where = f"{len(names)} hosts" if len(names) > 1 else "".join(names) or "this machine"
            lines.append((bold(f" {plural(len(jobs), 'job')} on {where}"),))
            self.above = len(lines)
            space = height - len(lines) - len(below) - 1

            def row(job: JobRecord, selected: bool) -> StyledLine:
                mark = Segment(" ▸ " if selected else "   ", TextStyle("accent", bold=True))
                line = (mark, *fit(_job_items(job, snapshot.at_ns), [], width - 3))
                return on(line, "cursor") if selected else line

            return [*lines, *self.listed(jobs, space, row), (), *below]
        if not snapshot.nodes and (words := _failed_lately(snapshot.at_ns)):
            lines += [*paragraph(words, width, TextStyle("warning"), rows=4), ()]
        lines += below
        if self.dashboard.options.launcher is not None and not self.state.readonly:
            lines += [(bold(" run a bundled workload  "), Segment(" w ", KEY)), ()]
        lines.append((bold(" watch a job of your own"), dim("  it is found as soon as it runs")))
        return [*lines, (Segment(f"   {_OWN_JOB}", TextStyle("accent")),)]

    def _title(self, width: int) -> list[StyledLine]:
        name = Segment(" overlaptop", TextStyle("accent", bold=True))
        waiting = "choose a job" if self.rows else "waiting for a job"
        words = printable(self.dashboard.launch.message or self.state.snapshot.hub_note or waiting)
        return hanging((name, Segment("   ")), words, width, TextStyle("warning"))

    def _hosts(self, width: int) -> list[StyledLine]:
        snapshot = self.state.snapshot
        if not snapshot.nodes:
            return []
        lines = [
            elided((Segment("   "), *host_status(node, snapshot.at_ns)), width) for node in snapshot.nodes
        ]
        return [(bold(" hosts"), dim("  H: more")), *lines, ()]


class JobsScreen(PageScreen[JobList]):
    """Opens by itself if there is no job, or more than one."""

    title_in_help = JOBS
    BINDINGS: ClassVar = bindings(LIST_KEYS)
    view_class, below_header = JobList, False

    def __init__(self, dashboard: Dashboard) -> None:
        super().__init__(dashboard)
        self.opened_at = dashboard.session.job_key
        """The previous job; the list closes when another one is shown."""

    async def action_open(self) -> None:
        if (job := self._view.selected) is not None:
            self.dashboard.select_job(job.job)
            await self.run_action("app.overview")

    def action_back(self) -> None:
        if self.state.snapshot.job is not None:
            super().action_back()


def _failed_lately(now_ns: int) -> str:
    """Return how the last job here failed; empty: it did not, or longer than FAILED_NS ago."""
    last = last_end.read()
    if last is None or now_ns - last.ended_ns > FAILED_NS or last.stopped:
        return ""
    return of_last(last, now_ns) if any(end.failed for end in last.ends) else ""


def _job_items(job: JobRecord, now_ns: int) -> list[Item]:
    running = age(max(0, now_ns - job.started_ns) / 1e9)
    return [
        Item((bold(f"{job.script:<24}"),)),
        Item((Segment(plural(job.world_size, "rank")), dim(f" · {job.host}")), 1),
        Item((dim("ended"),) if job.ended else (dim("running "), Segment(running)), 2),
        Item((dim(job.job),), 3),
        Item((dim(job.cwd),), 4),
    ]
