"""The jobs of this session, newest first: their settings and their figures."""

from overlaptop.fleet.records import BOUNDS
from overlaptop.text import bounded, count, duration, percent, printable
from overlaptop.tui.draw.segments import BOLD, TEXT, Segment, StyledLine, TextStyle, dim
from overlaptop.tui.draw.table import Column, Table
from overlaptop.tui.model.earlier import EarlierJob
from overlaptop.tui.widgets.view import JobView

_JOB = "watched so far, newest first"
_COLUMNS = (
    Column(_JOB, 16, right=False),
    Column("changed", 8, right=False),
    Column("steps", 7, shown_from=100),
    Column("step time", 9, shown_from=80),
    Column("overlap", 8),
    Column("exposed", 8, shown_from=90),
    Column("", 10, right=False),
)


class TriedTable(JobView):
    """A line for each job and setting of its knobs."""

    fades = False

    def full_height(self, width: int) -> int:  # noqa: ARG002
        jobs = len(self.dashboard.jobs_seen.all)
        return 1 + jobs if jobs else 0

    def draw(self, width: int, height: int) -> list[StyledLine]:
        jobs = self.dashboard.jobs_seen.all[::-1][: max(0, height - 1)]
        words = {
            "": [job.how for job in jobs],
            "changed": map(_changed, jobs),
            _JOB: [_JOB, *(job.label for job in jobs)],
        }
        table, present = Table(_COLUMNS, width, words), self.dashboard.jobs_seen.present
        return [table.header(), *(table.row(_cells(job), cursor=job == present) for job in jobs)]


def _cells(job: EarlierJob) -> tuple[StyledLine, ...]:
    figures = job.figures
    overlap = bounded(percent(figures.overlap), BOUNDS["overlap"], exact=job.exact)
    return (
        (Segment(printable(job.label), BOLD if job.how == "runs" else TEXT),),
        (Segment(printable(_changed(job)), TextStyle("accent")),),
        (Segment(count(job.steps_done or None)),),
        (Segment(duration(figures.step_ns)),),
        (Segment(overlap),),
        (Segment(duration(figures.exposed_ns)),),
        (dim(job.how),),
    )


def _changed(job: EarlierJob) -> str:
    return ", ".join(setting.words for setting in job.settings if setting.changed)
