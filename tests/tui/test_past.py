"""A paused screen and one that went back are of one moment: rows, totals, first line, header, timeline."""

from msgspec.structs import replace

from tests.fleet.builders import MS, step

from .fakes import opened, row_of, shown
from .knobs import BUCKET, by_another, obey, send_knobs
from .waits import say_step, split_step, waiting_job


def late_by_turns(steps=12, slow=None):
    """Rank `number % 4` is late in each step, by as many ms as its number; step `slow` is longer."""
    session = waiting_job(lambda _: 9)
    for number in range(8, steps):
        session.tick()
        for rank in range(4):
            totals, timeline = split_step(rank, number, late_ms=number if rank == number % 4 else 0)
            if number == slow:
                totals = replace(totals, step_ns=200 * MS, idle_ns=120 * MS)
                timeline = replace(timeline, step_ns=200 * MS)
            session.say(totals, timeline)
    return session


def is_of(text, number):
    """Whether all is of this step, in which rank ``number % 4`` is late by as many ms as its number."""
    late = number % 4
    said = (
        f"past step {number}, ",
        f"rank {late} is late in 2 of 2 collectives; the others wait {number:.1f}",
        f"step {number}, mean of 4 ranks",
        f"rank 0  step {number} ",
    )
    waited = [float(row_of(text, rank).split("%")[1].split()[1]) for rank in range(4)]
    return all(words in text for words in said) and waited == [
        0 if rank == late else number for rank in range(4)
    ]


async def test_keys_go_through_the_kept_steps_and_back_to_live():
    session = late_by_turns(14)
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        assert is_of(await shown(app, pilot, "{"), 12)
        say_step(session, 14)
        assert is_of(await shown(app, pilot, "{", "{", rest_s=5), 10)
        assert is_of(await shown(app, pilot, "}"), 11)
        text = await shown(app, pilot, "down")
        assert "rank 1  step 11 " in text
        assert "● live" not in text
        assert "past step 13" in await shown(app, pilot, "}", "}", "}")
        assert "past step 0" in await shown(app, pilot, *"{" * 20)
        for key in ("space", "escape"):
            text = await shown(app, pilot, key, rest_s=2)
            assert "past step" not in "\n".join(text.splitlines()[:4])
            assert "rank 1  step 14 " in text
            assert "no step since" in await shown(app, pilot, rest_s=60)
            assert "no step since" not in await shown(app, pilot, "{")  # as it was


async def test_past_step_shows_the_value_that_it_ran_with():
    session = late_by_turns(10)
    send_knobs(session, BUCKET, ranks=4)
    obey(session, by_another(session, 50), 10, "25", "50", ranks=4)
    for number in range(10, 14):
        for rank in range(4):
            totals, timeline = split_step(rank, number)
            session.say(replace(totals, transitional=number == 10, trial=number == 12), timeline)
    async with opened(session, size=(160, 45)) as (app, pilot):
        assert "bucket 50 MiB [ ]" in await shown(app, pilot)
        for step, value in ((12, "–"), (11, "50 MiB"), (10, "–"), (9, "25 MiB"), (8, "25 MiB")):
            text = await shown(app, pilot, "{")
            assert f"past step {step}, " in text
            assert f"bucket {value} [ ]" in text


async def test_l_and_a_click_in_the_history_show_the_slowest_step():
    async with opened(late_by_turns(14, slow=9)) as (app, pilot):
        lines = (await shown(app, pilot)).splitlines()
        chart = next(at for at, line in enumerate(lines) if "step time" in line) + 1
        top = next(at for at in range(chart, len(lines)) if set("▁▂▃▄▅▆▇█") & set(lines[at]))
        column = next(at for at, glyph in enumerate(lines[top]) if glyph in "▁▂▃▄▅▆▇█")
        await pilot.click(offset=(column, top))
        assert is_of(await shown(app, pilot), 9)
        text = await shown(app, pilot, "space", "L")
        assert is_of(text, 9)
        assert "▼" in row_of(text, 0)
        assert "▸" not in row_of(text, 3)  # it has its own scale


async def test_what_is_not_known_of_a_past_step_is_said():
    session = late_by_turns(14)
    session.say(step(0, 14), step(1, 14), *(step(rank, 15) for rank in range(4)))
    async with opened(session) as (app, pilot):
        await shown(app, pilot)
        text = await shown(app, pilot, "L")
        app.dashboard.show_step(14)
        text = await shown(app, pilot)
        assert "this step is not known" in row_of(text, 2)
        assert "the timeline of step 14 of rank 0 was not sent, or is kept no more" in text
        assert "step 14, mean of 2 ranks" in text
        assert "who waits for whom is not known: no timeline of this step is kept" in text
