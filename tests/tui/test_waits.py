"""Who waits for whom: on the overview and in the timeline; and the forms of the first line."""

import re
from dataclasses import replace

import pytest
from msgspec import structs

from overlaptop.findings.finding import Certainty, Finding, why_late
from overlaptop.report.who_is_late import FirstLine, Kind, who_is_late
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.overview.columns import COLUMNS, Scales
from overlaptop.tui.overview.lines import FirstLineView
from tests.fleet.builders import MS, detail, info, status, step, welcome
from tests.fleet.fakes import FakeSession

from .fakes import opened, screen_of, shown, text_of
from .waits import waiting_job

WIDTH = 100


def first_line(text):
    """Below the header."""
    lines = [line.strip() for line in text.splitlines()]
    return lines[next(at for at, line in enumerate(lines) if re.search("overlap [≤–0-9]", line)) - 1]


def test_wait_with_an_unknown_part_is_marked_and_never_zero():
    job = waiting_job()
    [cell] = [each.cell for each in COLUMNS if each.key == "waiting"]
    scales = Scales(ViewState(job.tick()))
    for waits, exact, figure in (
        (WaitTimes(20 * MS, 0, 30 * MS, 9 * MS, 0, 30 * MS), True, "≥9.00"),
        (WaitTimes(20 * MS, 0, 0, 900, 0, 0), False, "≥0.00"),
        (WaitTimes(0, 20 * MS, 0, 0, 4 * MS, 0), False, "0.00"),
    ):
        job.say(info(0, exact=exact))
        view = structs.replace(job.tick().ranks[0], waits=waits)
        assert text_of(cell(view, scales, 9)) == figure


async def test_first_line_says_why_it_is_not_known_who_waits():
    session = FakeSession(welcome(), status(), info(0), info(1), step(0, 0), step(1, 0), detail(0, 0))
    assert first_line(await screen_of(session)) == "· measuring, 0 s"
    said = who_is_late(session.tick())
    assert said.words == "who waits for whom is not known: no timeline of rank 1 is here"


@pytest.mark.parametrize(("gain_ms", "counted"), [(1, "1 minor finding f"), (40, "1 finding f")])
async def test_findings_too_small_for_the_line_are_minor(gain_ms, counted):
    async with opened(waiting_job(late_ms=0), size=(WIDTH, 40)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen.query_one(FirstLineView), app.dashboard.state
        state.findings = (replace(SLOW, gain_ns=gain_ms * MS),)
        state.first_line = FirstLine("No rank is clearly late", "")
        (line,) = view.draw(WIDTH, 1)
        assert counted in text_of(line)


TITLE = "rank 1 computes 12.1 ms a step longer than the others"
SLOW = Finding(
    TITLE, "", "", Certainty.LIKELY, ranks=(1,), why_late=True, line="jobs/train.py:57 in collate"
)
LATE = FirstLine(
    "rank 1 is late in 40 of 41 collectives; the others wait 12.0 ms a step",
    "rank 1 late in 98 % of collectives; others wait 12.0 ms a step",
    warns=True,
    kind=Kind.LATE,
    cause=why_late([SLOW], 1),
    shorter=SLOW.headlines,
)


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (90, "rank 1 computes 12.1 ms a step longer than the others (jobs/train.py:57 in collate)"),
        (60, "rank 1 computes 12.1 ms a step longer (train.py:57)"),
        (30, "rank 1 computes longer"),
    ],
)
async def test_first_line_keeps_rank_cause_time_and_line(width, words):
    async with opened(waiting_job(), size=(width, 20)) as (app, pilot):
        await shown(app, pilot)
        app.dashboard.state.findings, app.dashboard.state.first_line = (), LATE
        (line,) = app.screen.query_one(FirstLineView).draw(width, 1)
        assert text_of(line).strip() == f"! {words}"
