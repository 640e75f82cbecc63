"""A change is gone back from, and made again, once."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from overlaptop.fleet.snapshot import HubState
from overlaptop.tuning.alternation import BESIDE, STEPS, Alternation
from overlaptop.wire import commands
from tests.fleet.builders import T0, step
from tests.fleet.hub import sent
from tests.tui.knobs import BUCKET, controlled_job, obey

ENOUGH = STEPS + BESIDE


def changed_job(was="25", becomes="50", at_step=20, knob=BUCKET):
    session = controlled_job(knob)
    command = replace(commands.make_setting(knob, int(becomes)), at_ns=T0)
    session.say(command)
    obey(session, command, at_step, was, becomes, knob)
    snapshot = session.tick()
    return session, Alternation(
        snapshot.commands[-1], snapshot.knobs[0].knob, [each.id for each in snapshot.commands]
    )


def run_to(session, last, alternation):
    for number in range(last - 2, last + 1):
        for rank in (0, 1):
            session.say(step(rank, number))
    alternation.tick(session.tick(), session.send)


def test_the_job_goes_back_and_again_each_after_enough_steps():
    session, alternation = changed_job()
    run_to(session, 20 + ENOUGH - 1, alternation)
    assert (sent(session), alternation.words) == ([], "back to 25 MiB in 1 step")
    run_to(session, 20 + ENOUGH, alternation)
    assert sent(session) == ["restore bucket_cap_mb"]  # the script's own value
    alternation.tick(session.tick(), session.send)
    assert len(session.sent) == 1
    obey(session, session.sent[0], 70, "50", "25")
    run_to(session, 75, alternation)
    assert alternation.words == f"again to 50 MiB in {70 + ENOUGH - 75} steps"
    run_to(session, 70 + ENOUGH, alternation)
    assert sent(session)[1:] == ["set bucket_cap_mb 50"]
    obey(session, session.sent[1], 120, "25", "50")
    alternation.tick(session.tick(), session.send)
    assert (alternation.over, alternation.words) == (True, "")
    run_to(session, 300, alternation)
    assert len(session.sent) == 2
    assert alternation.ids == {command.id for command in session.sent}


def test_it_stops_where_somebody_else_changes_the_job_where_that_refuses_and_where_it_ends():
    session, alternation = changed_job()
    other = replace(commands.make_setting(BUCKET, 100), at_ns=T0 + 1)
    session.say(other)
    obey(session, other, 40, "50", "100")
    run_to(session, 20 + ENOUGH, alternation)
    assert alternation.words == "another change was made: the job keeps the value that it has"
    assert (alternation.over, session.sent) == (True, [])

    session, alternation = changed_job()
    run_to(session, 20 + ENOUGH - 1, alternation)
    for number in range(20, 20 + ENOUGH + 1):
        for rank in (0, 1):
            session.say(step(rank, number))
    alternation.tick(session.tick(), lambda command: "there is no connection")
    assert alternation.words.startswith("not changed (there is no connection)")

    session, alternation = changed_job()
    alternation.tick(dataclasses.replace(session.tick(), hub_state=HubState.ENDED), session.send)
    assert alternation.words.startswith("the job ended")


def test_a_value_that_no_command_can_set_is_not_gone_back_from():
    knob = replace(BUCKET, original_text="10")
    with pytest.raises(ValueError, match=r"bucket_cap_mb cannot be set to 25\.5"):
        changed_job(was="25.5", knob=knob)
