"""The workloads' screen, driven through Textual's pilot, over a launcher without processes."""

import threading

from textual.widgets import Input

from overlaptop.launch.request import LaunchRequest
from overlaptop.tui.overview.screen import OverviewScreen
from overlaptop.tui.workloads.screen import WorkloadsScreen
from tests.fleet.builders import info, status, step, welcome
from tests.fleet.fakes import record

from .fakes import SIZES, opened, running_job, screen_lines, screen_text
from .launchers import FakeLauncher, started_here


async def settled(app, pilot):
    """The screen after all that was asked for has been answered and drawn."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    app.read()
    app.show()
    await pilot.pause()
    return screen_text(app)


def two_jobs():
    """A job that was started from here, and another one that was not."""
    session = running_job()
    launcher = started_here(session, "--bucket-cap-mb", "25")
    session.jobs += (record("job-2", "mine.py"), record("job-0", "over.py", ended=True))
    return launcher, session


def field(app, name):
    return app.screen.query_one(f"#{name}", Input)


async def write(app, pilot, options, *keys):
    """Open the screen and put these options on its line at once; key by key is slow."""
    if not isinstance(app.screen, WorkloadsScreen):
        await pilot.press("w")
    field(app, "options").value = options
    await pilot.pause()
    await pilot.press(*keys)


def comes_up(session, job, script="ddp.py", *, steps=30, comm=10):
    """Another job is there, and has made some steps when the session turns to it."""
    session.jobs = (record(job, script), *session.jobs)
    session.say(welcome(job=job, script=script), status(), info(0, job=job), info(1, job=job))
    for number in range(steps):
        for rank in (0, 1):
            session.say(step(rank, number, comm=comm, hidden=comm))


async def test_what_is_typed_is_what_would_be_run():
    launcher, session = two_jobs()
    async with opened(session, launcher=launcher) as (app, pilot):
        await pilot.press("w", "backspace", "0")  # what was asked for before is there to be changed
        assert "torchrun --nproc-per-node=2 ddp.py --bucket-cap-mb 20" in await settled(app, pilot)
        await write(app, pilot, "--layers 8", "tab", "3")
        text = await settled(app, pilot)
        assert "torchrun --nproc-per-node=3 ddp.py --layers 8" in text
        assert "transformer blocks; default 4" in text
        await pilot.press("tab", *" --seed 1")
        assert "ddp.py --layers 8 --seed 1" in await settled(app, pilot)
        await pilot.press("down")
        await write(app, pilot, "--prefetch-forward 1", "up")
        assert "ddp.py --layers 8" in await settled(app, pilot)  # each workload keeps its own
        row = next(y for y, line in enumerate(screen_lines(app)) if line.strip().startswith("fsdp "))
        await pilot.click(offset=(20, row))
        assert "fsdp.py --prefetch-forward 1" in await settled(app, pilot)


async def test_wrong_option_or_number_of_processes_is_said_in_full():
    launcher, session = two_jobs()
    long = "--nonesuch-option-with-a-long-name and some words that belong to no option at all"
    async with opened(session, launcher=launcher, size=SIZES[2]) as (app, pilot):
        for typed, keys, fault in (
            ("--losses 'my", ("enter",), "No closing quotation"),
            (f"--steps 1 {long}", ("enter",), f"unrecognized arguments: {long}"),
            ("", ("tab", "x", "enter"), "processes: must be a whole number from 1 to 256, not 'x'"),
        ):
            await write(app, pilot, typed, *keys)
            assert fault in " ".join((await settled(app, pilot)).split())
        assert launcher.requests == [LaunchRequest("ddp", ("--bucket-cap-mb", "25"))]


async def test_new_job_replaces_the_one_started_here_after_a_yes():
    launcher, session = two_jobs()
    async with opened(session, launcher=launcher) as (app, pilot):
        await settled(app, pilot)
        await write(app, pilot, "--bucket-cap-mb 25 --seed 1")
        said = "ends ddp --bucket-cap-mb 25, then runs (mine.py, not started here, goes on beside it)"
        assert said in await settled(app, pilot)
        await pilot.press("enter", "enter", "space", "q", "escape")
        assert len(launcher.requests) == 1
        await pilot.press("enter", "y")
        text = await settled(app, pilot)
        assert "ending ddp --bucket-cap-mb 25, then ddp --bucket-cap-mb 25 --seed 1" in text
        await pilot.press("enter")  # twice is once
        await settled(app, pilot)
        assert launcher.requests[1:] == [LaunchRequest("ddp", ("--bucket-cap-mb", "25", "--seed", "1"))]
        launcher.comes_up("job-3")
        assert "--seed 1 is starting" in await settled(app, pilot)
        assert isinstance(app.screen, WorkloadsScreen)
        comes_up(session, "job-3")
        await settled(app, pilot)
        assert isinstance(app.screen, OverviewScreen)
        assert session.selected == ["job-3"]
        await pilot.press("w")
        lines = (await settled(app, pilot)).splitlines()
        at = next(at for at, line in enumerate(lines) if "watched so far" in line)
        now, before = (" ".join(line.split()) for line in lines[at + 1 : at + 3])
        assert now == "▸ ddp --bucket-cap-mb 25 --seed 1 30 70.0 ms 100.0 % 0 runs"
        assert before.startswith("ddp --bucket-cap-mb 25 ")
        assert before.endswith("73.3 % 8.00 ms ended here")


async def test_failed_job_shows_its_last_lines_and_can_be_scrolled():
    launcher, session = two_jobs()
    async with opened(session, launcher=launcher, size=SIZES[2]) as (app, pilot):
        await settled(app, pilot)
        launcher.fails("killed by SIGKILL", "")
        for _ in range(2):
            await settled(app, pilot)
            (told,) = app._notifications  # once, on every other screen
            assert told.message == "ddp --bucket-cap-mb 25 ended: killed by SIGKILL (w: more)"
        await pilot.press("w", "enter")
        await settled(app, pilot)
        lines = *(f"line {at} of it" for at in range(99)), "ValueError: too \x1b large"
        launcher.fails("exit status 1", *lines)
        text = await settled(app, pilot)
        assert "ended: exit status 1" in text
        assert "ValueError: too ? large" in text
        assert "line 0 of it" not in text
        app.screen.action_scroll(-100)
        assert "line 0 of it" in await settled(app, pilot)
        app.screen.action_scroll(99)
        await pilot.press("pagedown")
        assert "ValueError: too ? large" in await settled(app, pilot)
        await pilot.press("escape", "o")  # the list of jobs says it, too
        assert "exit status 1, ValueError: too ? large" in " ".join((await settled(app, pilot)).split())


async def test_f9_ends_what_was_started_here():
    launcher, session = two_jobs()
    async with opened(session, launcher=launcher) as (app, pilot):
        await pilot.press("w", "f9")
        await pilot.pause()
        assert "end ddp --bucket-cap-mb 25?   y: yes   esc: no" in screen_text(app)
        await pilot.press("escape", "f9", "n")
        assert launcher.stops == 0
        await pilot.press("f9", "y")
        launcher.running = ""
        await pilot.press("f9", "y")
        assert launcher.stops == 1


async def test_planning_does_not_block_and_old_plans_are_dropped():
    launcher, looked = FakeLauncher(), threading.Event()
    plan = launcher.plan
    launcher.plan = lambda request: looked.wait(20) and plan(request)
    async with opened(running_job(), launcher=launcher) as (app, pilot):
        await write(app, pilot, "--seed 1")
        app.show()
        await pilot.pause()
        assert "looking at the machine" in screen_text(app)
        field(app, "options").value = '--seed 1 "x'
        looked.set()
        assert "No closing quotation" in await settled(app, pilot)
