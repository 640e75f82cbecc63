"""Jobs for a screen, and what is on the app's screen as text."""

import time
from contextlib import asynccontextmanager

from msgspec.structs import replace
from rich.cells import cell_len

from overlaptop.tui.app import OverlaptopApp
from overlaptop.tui.model.options import TuiOptions
from tests.fleet.builders import detail, info, status, step, welcome
from tests.fleet.fakes import FakeSession

WIDE = (160, 45)
SIZES = (WIDE, (100, 30), (60, 20))


def running_job(ranks=4):
    """Ranks whose overlap falls and whose step grows with their number; rank r exposes 2 + 4r of 30 ms.

    Their timelines are of different steps, so that nothing is split.
    """
    session = FakeSession(welcome(world_size=ranks, script="/home/me/train.py"), status())
    for rank in range(ranks):
        session.say(info(rank, host=f"node{rank // 2}", world_size=ranks))
        for number in range(40):
            session.say(step(rank, number, comm=30, hidden=28 - 4 * rank, stall=rank))
        session.say(replace(detail(rank, 39), step=39 - rank))
    return session


def app_of(session, **options):
    """An app whose clock is the session's, where that has one."""
    clock_s = session.clock.monotonic_s if hasattr(session, "clock") else time.monotonic
    return OverlaptopApp(session, TuiOptions(**options), clock_s=clock_s)


@asynccontextmanager
async def opened(session, size=WIDE, **options):
    """An app on a screen of that size, and Textual's pilot of it."""
    app = app_of(session, **options)
    async with app.run_test(size=size) as pilot:
        yield app, pilot


async def shown(app, pilot, *keys, rest_s=0.0):
    """The screen after these keys and so much time, with all that is known and sent by then."""
    if keys:
        await pilot.press(*keys)
        await pilot.pause()
    if rest_s:
        app.dashboard.session.clock.pass_s(rest_s)
    app.read()
    app.show()
    for _ in range(2):  # the first lays out widgets of another height, and draws them later on busy cores
        await pilot.pause()
    return screen_text(app)


async def screen_of(session, *keys, size=WIDE, **options):
    async with opened(session, size, **options) as (app, pilot):
        return await shown(app, pilot, *keys)


def text_of(line):
    return "".join(part.text for part in line)


def screen_lines(app):
    """What the terminal shows, a string a row."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def screen_text(app):
    return "\n".join(screen_lines(app))


def table_rows(app):
    """The table from top to bottom: names of hosts, and numbers of ranks."""
    lines = screen_lines(app)
    header = next(at for at, line in enumerate(lines) if line.strip().startswith("rank"))
    rows = []
    for line in lines[header + 1 :]:
        first = line.replace("▸", " ").replace("○", " ").split()[:1]
        if line.startswith(" ── "):
            rows.append(line[4:].split("  ")[0])
        elif first and first[0].isdigit():
            rows.append(int(first[0]))
        else:
            break
    return rows


def table_ranks(app):
    return [row for row in table_rows(app) if isinstance(row, int)]


def line_of(text, words):
    return next(line for line in text.splitlines() if words in line)


def row_of(text, rank):
    return next(line for line in text.splitlines() if line.replace("▸", " ").split()[:1] == [str(rank)])


def fills(app, size):
    """Whether the screen is exactly as wide and as high as its terminal, and nothing in it steers that."""
    lines = screen_lines(app)
    return all(map(str.isprintable, lines)) and [cell_len(line) for line in lines] == [size[0]] * size[1]


def colors(app):
    styles = [run.style for strip in app.screen._compositor.render_strips() for run in strip if run.style]
    return {color for style in styles for color in (style.color, style.bgcolor) if color}
