"""The overview as it looks, at three sizes: `snapshots/` has the pages, but for the keys at the foot.

``UPDATE_SNAPSHOTS=1`` writes them anew; look at the difference before it is committed.
"""

import os
import time
from pathlib import Path

import pytest

from overlaptop.tui.app import OverlaptopApp
from tests.fleet.builders import info, stacks

from .fakes import SIZES, opened, screen_lines, shown
from .waits import STEPS, say_step, waiting_job

PAGES = Path(__file__).with_name("snapshots")


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    """Pages have times of day."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def on_cpus():
    """Rank 2 is late, at a line of the script, and compute is an upper bound."""
    said = {"exact": False, "device": "cpu", "source": "host", "backend": "gloo"}
    for rank in range(4):
        yield info(rank, **said)
        yield stacks(rank, 9, collate=7 if rank == 2 else 1)


def page_of(app: OverlaptopApp) -> str:
    return "\n".join(line.rstrip() for line in screen_lines(app)[:-1]).rstrip() + "\n"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "late_ms", "said"), [("late-on-cpus", 16, tuple(on_cpus())), ("nobody-late", 1, ())]
)
async def test_overview_looks_as_in_its_snapshot(name, late_ms, said, size):
    path, session = PAGES / f"{name}-{size[0]}x{size[1]}.txt", waiting_job(late_ms=late_ms)
    session.say(*said)
    async with opened(session, size) as (app, pilot):
        for number in range(STEPS, STEPS + 20):  # answers have to hold
            say_step(session, number, late=2, late_ms=late_ms)
            await shown(app, pilot, rest_s=0.4)
        page = page_of(app)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGES.mkdir(exist_ok=True)
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")
