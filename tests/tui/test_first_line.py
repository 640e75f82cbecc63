"""The form of the first line does not turn with its figures."""

import pytest

from overlaptop.report.who_is_late import FirstLine, Kind

from .fakes import opened, shown, text_of
from .waits import waiting_job

WIDTH = 100


async def test_a_shorter_form_stays_while_the_longer_one_hardly_fits():
    async with opened(waiting_job(), size=(WIDTH, 40)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen._first_line, app.dashboard.state
        state.findings = ()
        forms = []
        for length in (WIDTH - 5, WIDTH - 3, WIDTH - 5, WIDTH - 3, WIDTH - 20):
            state.first_line = FirstLine("w" * length, "brief")
            (line,) = view.draw(WIDTH, 1)
            forms.append("brief" if "brief" in text_of(line) else "words")
        assert forms == ["words", "brief", "brief", "brief", "words"]


SLOW = "rank 1 computes 12.1 ms a step longer than the others"
NARROW = 60


@pytest.mark.parametrize(
    ("said", "shown_words"),
    [
        (
            FirstLine(
                "rank 1 is late in 40 of 41 collectives; the others wait 12.0 ms a step",
                "rank 1 late in 98 %; others wait 12.0 ms",
                warns=True,
                kind=Kind.LATE,
                cause=SLOW.removeprefix("rank 1"),
                blame=f"{SLOW} (train.py:57 in collate)",
            ),
            "rank 1 computes 12.1 ms a step longer",
        ),
        (
            FirstLine(
                "each rank waits 61.6 ms a step for a CPU: there are too few: at most 34 % of the step",
                "each rank waits 61.6 ms a step for a CPU: there are too few",
                warns=True,
                kind=Kind.FINDING,
            ),
            "each rank waits 61.6 ms a step for a CPU",
        ),
    ],
)
async def test_narrow_line_keeps_the_cause_and_is_not_cut(said, shown_words):
    async with opened(waiting_job(), size=(NARROW, 20)) as (app, pilot):
        await shown(app, pilot)
        view, state = app.screen._first_line, app.dashboard.state
        state.findings, state.first_line = (), said
        (line,) = view.draw(NARROW - 5, 1)
        assert text_of(line).strip() == f"! {shown_words}"
