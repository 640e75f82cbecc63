"""The form of the first line does not turn with its figures."""

from dataclasses import replace

import pytest

from overlaptop.findings.finding import Certainty, Finding, why_late
from overlaptop.report.who_is_late import FirstLine, Kind
from overlaptop.tui.overview.lines import FirstLineView
from tests.fleet.builders import MS

from .fakes import opened, shown, text_of
from .waits import waiting_job

WIDTH = 100


async def test_a_shorter_form_stays_while_the_longer_one_hardly_fits():
    async with opened(waiting_job(), size=(WIDTH, 40)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen.query_one(FirstLineView), app.dashboard.state
        state.findings = ()
        forms = []
        for length in (WIDTH - 5, WIDTH - 3, WIDTH - 5, WIDTH - 3, WIDTH - 20):
            state.first_line = FirstLine("w" * length, "brief")
            (line,) = view.draw(WIDTH, 1)
            forms.append("brief" if "brief" in text_of(line) else "words")
        assert forms == ["words", "brief", "brief", "brief", "words"]


@pytest.mark.parametrize(("gain_ms", "counted"), [(1, "1 minor finding f"), (40, "1 finding f")])
async def test_findings_too_small_for_the_line_are_minor(gain_ms, counted):
    async with opened(waiting_job(late_ms=0), size=(WIDTH, 40)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen.query_one(FirstLineView), app.dashboard.state
        state.findings = (replace(SLOW, gain_ns=gain_ms * MS),)
        state.first_line = FirstLine("No rank is clearly late", "")
        (line,) = view.draw(WIDTH, 1)
        assert counted in text_of(line)


SLOW = Finding(
    "rank 1 computes 12.1 ms a step longer than the others",
    "",
    "",
    Certainty.LIKELY,
    ranks=(1,),
    why_late=True,
    line="jobs/train.py:57 in collate",
)
LATE = FirstLine(
    "rank 1 is late in 40 of 41 collectives; the others wait 12.0 ms a step",
    "rank 1 late in 98 % of collectives; others wait 12.0 ms a step",
    warns=True,
    kind=Kind.LATE,
    cause=why_late([SLOW], 1),
    shorter=SLOW.headlines,
)


def late_by(title):
    found = replace(SLOW, title=title, line="workloads/faults.py:87 in lose")
    return LATE._replace(cause=why_late([found], 1), shorter=found.headlines)


ASLEEP = late_by("rank 1's training thread sleeps 161 ms a step longer than rank 0's")
LAUNCHES = late_by("rank 1 is launch-bound: GPU idle 12.1 ms a step longer than the others'")
COLLECTS = late_by("rank 1 collects garbage and computes 12.1 ms a step longer than the others")
AT_LINE = late_by("rank 1 is at workloads/faults.py:87 in lose for 70 % of its step, rank 0 for 10 %")


@pytest.mark.parametrize(
    ("width", "said", "shown_words"),
    [
        (160, LATE, "rank 1 is late in 40 of 41 collectives: it computes 12.1 ms a step longer than the "
         "others (jobs/train.py:57 in collate); the others wait 12.0 ms a step"),
        (90, LATE, "rank 1 computes 12.1 ms a step longer than the others (jobs/train.py:57 in collate)"),
        (60, LATE, "rank 1 computes 12.1 ms a step longer (train.py:57)"),
        (50, LATE, "rank 1 computes 12.1 ms longer (train.py:57)"),
        (40, LATE, "rank 1 computes 12.1 ms longer"),
        (60, ASLEEP, "rank 1 sleeps 161 ms longer (faults.py:87)"),
        (60, LAUNCHES, "rank 1 is launch-bound: GPU idle 12.1 ms longer"),
        (60, COLLECTS, "rank 1 collects garbage and computes 12.1 ms longer"),
        (60, AT_LINE, "rank 1 is at faults.py:87 for 70 % of its step"),
        (30, LATE, "rank 1 computes longer"),
    ],
)  # fmt: skip
async def test_first_line_keeps_rank_cause_time_and_line(width, said, shown_words):
    async with opened(waiting_job(), size=(width, 20)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen.query_one(FirstLineView), app.dashboard.state
        state.findings, state.first_line = (), said
        (line,) = view.draw(width, 1)
        assert text_of(line).strip() == f"! {shown_words}"
