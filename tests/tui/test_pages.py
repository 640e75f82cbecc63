"""Every view as it looks: `snapshots/` has the pages.

``UPDATE_SNAPSHOTS=1`` writes them anew; look at the difference before it is committed.
"""

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlaptop.commands.analyze import session_of
from overlaptop.fleet.snapshot import HubState
from overlaptop.formats.job import analyze
from overlaptop.jobs import change_log
from overlaptop.timeline.lanes import LaneRules
from overlaptop.wire.messages import GroupCalls, IssuedCall, Notice, RankEnd, RankStalled
from tests.fleet.builders import T0, S, info, stacks, status, step, unmeasured, welcome
from tests.fleet.fakes import FakeSession

from .clusters import Cluster
from .fakes import SIZES, WIDE, opened, running_job, screen_lines, shown
from .knobs import ACCUMULATION, BUCKET, by_another, controlled_job, obey, report
from .large import large_job
from .launchers import FakeLauncher
from .machines import cpu_only, h200_node, misplaced, unbound, workstation
from .waits import STEPS, say_step, waiting_job

PAGES = Path(__file__).with_name("snapshots")
TRACES = Path(__file__).parent.parent / "formats" / "data"
MIDDLE, SMALL = SIZES[1:]


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    """Pages have times of day, and the path of the log."""
    monkeypatch.setattr(change_log, "path", lambda: Path("/tmp/jobs/changes.jsonl"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def looks_as(name, app):
    """Whether the screen is the page of that name."""
    width, height = app.size
    path = PAGES / f"{name}-{width}x{height}.txt"
    page = "\n".join(line.rstrip() for line in screen_lines(app)).rstrip() + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")


def on_cpus():
    """Rank 2 is late, at a line of the script, and compute is an upper bound."""
    said = {"exact": False, "device": "cpu", "source": "host", "backend": "gloo"}
    for rank in range(4):
        yield info(rank, **said)
        yield stacks(rank, 9, collate=7 if rank == 2 else 1)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "late_ms", "said"), [("late-on-cpus", 16, tuple(on_cpus())), ("nobody-late", 1, ())]
)
async def test_overview_looks_as_in_its_page(name, late_ms, said, size):
    session = waiting_job(late_ms=late_ms)
    session.say(*said)
    async with opened(session, size) as (app, pilot):
        for number in range(STEPS, STEPS + 20):  # answers have to hold
            say_step(session, number, late=2, late_ms=late_ms)
            await shown(app, pilot, rest_s=0.4)
        looks_as(name, app)
        if said and size == MIDDLE:
            await shown(app, pilot, "f")
            looks_as("findings", app)


def changed_job():
    """Its bucket size was changed, with a step after it; another change was refused."""
    session = controlled_job(BUCKET, ACCUMULATION)
    session.tick()
    obey(session, by_another(session, 50), 39, "25", "50")
    report(session, by_another(session, 7, at_ns=T0 + S), "refused", None, "no more memory", ranks=(0,))
    return session


def compared_job():
    """Its bucket size was changed, and steps followed."""
    session = controlled_job(BUCKET)
    session.tick()
    obey(session, by_another(session, 50), 40, "25", "50")
    session.say(*(step(rank, number, hidden=29) for rank in (0, 1) for number in range(40, 60)))
    session.clock.pass_s(2)
    return session


def hung_job():
    """Ranks 0 to 2 wait in a collective that rank 3 has not entered."""
    session, call = running_job(), IssuedCall("allreduce_", 25 << 20, 57, T0)
    session.clock.pass_s(143)
    for rank in range(4):
        calls = (call if rank < 3 else replace(call, sequence=56),)
        script = ("train.py:88 load_batch", "train.py:120 main")
        session.say(RankStalled(rank, True, (GroupCalls("0 pg", (0, 1, 2, 3), calls),), script))
    return session


def silent_job():
    session = running_job()
    session.clock.pass_s(70)
    session.say(status(silent=(2,)))
    return session


def failed_job():
    session = running_job()
    session.say(RankEnd(1, T0 + 1, True, "ValueError: boom"), RankEnd(0, T0 + S, False, exit_code=-15))
    session.say(*(RankEnd(rank, T0 + S, False) for rank in (2, 3)))
    session.fleet.set_hub_state(HubState.ENDED, "if train.py is started again, it is shown here")
    return session


def not_measured():
    """Of rank 0 only phases are measured; rank 1 has not come."""
    return FakeSession(welcome(), status(), info(0, detail_every=0), unmeasured(0, 0))


def trace_of(name):
    return session_of(analyze(TRACES / name, LaneRules()))


def with_notices():
    session = running_job()
    session.say(Notice(3, T0 + 1, "error", "CUPTI is held by nsys"), Notice(2, T0, "info", "joined"))
    return session


def two_hosts():
    return Cluster("gpu-a", "gpu-b").live("gpu-b")


SCENES = {
    "folded": (large_job, "1", SIZES),
    "overview": (lambda: h200_node(4, numas={1: misplaced(1), 2: unbound(2)}), "1", (WIDE,)),
    "rank": (h200_node, "2", (WIDE, MIDDLE, SMALL)),
    "collectives": (waiting_job, "C", (WIDE, SMALL)),
    "timelines": (waiting_job, "T full_stop full_stop", (WIDE, MIDDLE, SMALL)),
    "machine": (lambda: h200_node(numas={0: misplaced(0)}), "m", (WIDE, MIDDLE, SMALL)),
    "machine-pcie": (workstation, "m", (MIDDLE,)),
    "machine-cpu": (cpu_only, "m", (MIDDLE,)),
    "tune": (changed_job, "u", (MIDDLE, SMALL)),
    "workloads": (running_job, "w", (WIDE, SMALL)),
    "jobs": (running_job, "o", (MIDDLE,)),
    "hosts": (two_hosts, "H", (MIDDLE,)),
    "cluster": (two_hosts, "1", (MIDDLE,)),
    "captures": (running_job, "5", (SMALL,)),
    "trials": (controlled_job, "a", (SMALL,)),
    "notices": (with_notices, "n", (SMALL,)),
    "help": (running_job, "question_mark", (MIDDLE,)),
    "folded-ascii": (lambda: large_job(256), "1", (MIDDLE,)),
    "changed": (compared_job, "1", (MIDDLE, SMALL)),
    "hung": (hung_job, "1", (WIDE, SMALL)),
    "silent": (silent_job, "1", (MIDDLE,)),
    "failed": (failed_job, "1", (WIDE, SMALL)),
    "not-measured": (not_measured, "1", (MIDDLE,)),
    "not-attributed": (lambda: waiting_job(ends=lambda rank: 45 + 5 * (rank < 3)), "1", (MIDDLE,)),
    "trace": (lambda: trace_of("ddp_25mb"), "1", (WIDE,)),
    "trace-rank": (lambda: trace_of("ddp_25mb"), "2", (MIDDLE,)),
    "trace-step": (lambda: trace_of("ddp_25mb"), "L", (MIDDLE,)),
    "trace-cpu": (lambda: trace_of("ddp_gloo"), "1", (MIDDLE,)),
}


@pytest.mark.parametrize(
    ("name", "size"), [(name, size) for name, (*_, sizes) in SCENES.items() for size in sizes]
)
async def test_view_looks_as_in_its_page(name, size):
    make, keys, _ = SCENES[name]
    async with opened(make(), size, launcher=FakeLauncher(), ascii="ascii" in name) as (app, pilot):
        for key in ("1", *keys.split()):
            await shown(app, pilot, key)
        await app.workers.wait_for_complete()
        await shown(app, pilot)
        looks_as(name, app)
