"""Who waits for whom: on the overview, in the timeline and in the list of collectives."""

import re
from dataclasses import replace

from msgspec import structs

from overlaptop.report.who_is_late import who_is_late
from overlaptop.timeline.arrivals import WaitTimes
from overlaptop.tui.model.state import ViewState
from overlaptop.tui.overview.columns import COLUMNS, Scales
from overlaptop.tui.overview.lines import FirstLineView
from tests.fleet.builders import MS, detail, info, status, step, welcome
from tests.fleet.fakes import FakeSession

from .fakes import line_of, opened, screen_of, shown, text_of
from .waits import split_step, waiting_job


def first_line(text):
    """Below the header."""
    lines = [line.strip() for line in text.splitlines()]
    return lines[next(at for at, line in enumerate(lines) if re.search("overlap [≤–0-9]", line)) - 1]


async def test_first_line_names_the_late_rank_the_cause_and_the_cost():
    async with opened(waiting_job(), size=(142, 40)) as (app, pilot):
        said = " ".join(first_line(await shown(app, pilot)).split())
        [run] = [run for run in app.screen.query_one(FirstLineView)._lines[0] if "rank 2" in run.text]
    words = "rank 2 late in 100 % of collectives: it computes 16.0 ms a step longer than the others"
    assert said == f"! {words}; others wait 16.0 ms a step (20 %) 1 finding f ▸"
    assert run.style.fg == "warning"


async def test_waiting_that_is_not_attributed_is_unknown_and_not_zero():
    job = waiting_job(ends=lambda rank: 45 if rank == 3 else 50)
    text = await screen_of(job)
    assert "exposed 14.8 ms not attributed" in text
    assert "waiting 0" not in text
    assert "waiting ms" not in line_of(text, "exposed ms")
    # A part that is not known is marked; the wait of a rank that waited for nobody is nothing.
    [cell] = [each.cell for each in COLUMNS if each.key == "waiting"]
    scales = Scales(ViewState(job.tick()), textured=False)
    for waits, exact, figure in (
        (WaitTimes(20 * MS, 0, 30 * MS, 900, 0, 30 * MS), True, "≥0.00"),
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


def test_first_line_counts_steps_if_few_collectives_are_late():
    snapshot = waiting_job().tick()
    window = snapshot.wait_window
    for each, words in (
        (window, "rank 2 is late in 12 of 12 collectives; "),
        (replace(window, lateness=rarely(window.lateness)), "rank 2 is late in 6 of 6 steps; "),
        (None, "who waits for whom is not known: the timelines of all ranks in one step are not here yet"),
    ):
        assert who_is_late(replace(snapshot, wait_window=each)).words.startswith(words)


def rarely(lateness):
    """The same where each rank was late in no collective but a few."""
    ranks = tuple(replace(each, late_count=each.late_count // 4) for each in lateness.ranks)
    return replace(lateness, ranks=ranks)


async def test_timeline_is_of_the_newest_attributed_step_unless_old():
    session = waiting_job()
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        for number, drawn in ((8, 7), (90, 90)):
            session.clock.pass_s(2)
            session.say(*split_step(0, number))
            text = await shown(app, pilot)
            assert f"rank 0  step {drawn} " in text
            assert ("██ waiting" in text) == (drawn == 7)
