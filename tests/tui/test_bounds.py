"""Whatever the codec lets in is drawn, printed and recorded: every field of every message at its edges."""

import io
from contextlib import suppress
from itertools import zip_longest

from msgspec.structs import replace

from overlaptop.commands.once import render
from overlaptop.commands.stream import RecordWriter
from overlaptop.fleet.job_state import JobState
from overlaptop.fleet.snapshot import HubState
from overlaptop.tui.model.knob_editor import ValueRefusedError, parsed, stepped
from overlaptop.tui.model.running_trials import usual_values
from overlaptop.wire.bounds import MAX_DURATION_NS
from overlaptop.wire.codec import decode, encode
from overlaptop.wire.knobs import KnobFacts
from overlaptop.wire.messages import (
    EnvironmentFacts,
    EnvironmentVariable,
    Notice,
    OwnCost,
    RankEnd,
    RankStalled,
)
from tests.fleet.builders import T0, detail, device, info, machine, numa, sample, status, step, welcome
from tests.fleet.fakes import FakeSession
from tests.wire.examples import COMMAND, GRADIENTS, MACHINE, OUTCOME, STACKS
from tests.wire.extremes import at_bounds

from .fakes import SIZES, fills, opened
from .knobs import BUCKET

PARTS = ("compute", "comm", "hidden", "exposed", "compute_only", "copy_only", "idle", "stall")
NO_PARTS = {f"{part}_ns": 0 for part in PARTS}
STEP = step(0, 5)
LONGEST = replace(STEP, **NO_PARTS, step_ns=MAX_DURATION_NS)
SHORTEST = replace(STEP, **NO_PARTS, step_ns=1)
TRIED = (
    (STEP, LONGEST, SHORTEST), (OUTCOME,),
    *((each,) for each in (
        detail(0, 5), info(0), MACHINE, device(0), numa(0), sample(0, 5), GRADIENTS, COMMAND,
        Notice(0, T0, "info", "a word"), RankEnd(0, T0, clean=True), KnobFacts(0, (BUCKET,)),
        OwnCost(0, 0.1, 0.1, 0.1, 0.1, True), RankStalled(0, True), STACKS,
        EnvironmentFacts(0, (EnvironmentVariable("NCCL_MAX_CTAS", "4"),)), status(), welcome(),
    )),
)  # fmt: skip
"""Of each kind one or more, which come one after the other: the newest hides the one before."""


def rounds():
    """Messages that come together, of each kind one."""
    kinds = [[each for base in bases for each in at_bounds(base)] for bases in TRIED]
    for together in zip_longest(*kinds):
        # The command first: nothing is made of an outcome of one that is not known.
        yield [COMMAND, *(decode(encode(each)) for each in together if each is not None)]


def job():
    """Two ranks before their first step: what it is alone is the job's history."""
    yield from (welcome(), status())
    for rank in (0, 1):
        yield from (info(rank, control_allowed=True), KnobFacts(rank, (BUCKET,)))
        yield from (machine(rank), device(rank), numa(rank), sample(rank, 1), sample(rank, 2))


def pictures(session):
    for said in rounds():
        session.fleet = JobState(session.clock)
        session.fleet.set_hub_state(HubState.LIVE)
        session.say(*job(), *said)
        yield session.tick()


async def test_no_value_ends_a_screen():
    session = FakeSession(*job())
    seen = list(pictures(session))
    async with opened(session, size=SIZES[0]) as (app, pilot):
        for number, size in enumerate(SIZES):
            await pilot.resize_terminal(*size)
            for key in ("1", "2", "m", "u", "5", "n", "C", "T"):
                app.dashboard.latest = seen[0]
                await pilot.press("1", key)
                # Steps have the most fields; when all others were tried, only where they are drawn.
                tried = seen if key in "12" else seen[:70]
                for snapshot in tried[number :: len(SIZES)]:
                    app.dashboard.latest = snapshot
                    app.show()
                    assert fills(app, size), key
    assert len(seen) > 150


def test_no_value_ends_what_is_printed():
    writer = RecordWriter(io.StringIO())
    for snapshot in pictures(FakeSession()):
        assert all(line.isprintable() for line in render(snapshot).split("\n"))
        writer.write(snapshot)


def test_no_knob_ends_a_prompt():
    knobs = {knob for facts in at_bounds(KnobFacts(0, (BUCKET,))) for knob in facts.knobs}
    assert len(knobs) > 9
    for knob in knobs:
        for direction in (-1, 1):
            stepped(knob, knob.value or 0, direction)
        for words in ("0", "-1", "9" * 40, "script"):
            with suppress(ValueRefusedError):
                parsed(knob, words)
        usual_values(knob, FakeSession().tick())
