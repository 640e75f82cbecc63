"""What becomes of a command, judged from its ranks' reports."""

import pytest
from msgspec.structs import replace

from overlaptop.hub.executions import CommandProgress, logged_state, merged
from overlaptop.wire import commands
from overlaptop.wire.commands import ENDED, SILENT, CommandReport
from tests.fleet.builders import BUCKET_CAP_MB

CAPTURE = commands.make(commands.CAPTURE, {"steps": 5})
SETTING = commands.make_setting(BUCKET_CAP_MB, 50)


def played(command, *events, ranks=(0, 1)):
    """A rank and what happened to it: a state and perhaps a text that it reports, or how it was lost."""
    execution = CommandProgress.begin(command, ranks)
    for rank, state, *text in events:
        if state in (ENDED, SILENT):
            execution.lose(rank, state)
        else:
            step = 40 if state not in ("accepted", "refused", "busy", "failed", "unknown") else None
            made = CommandReport(rank, command.id, command.name, 1, state, step, "".join(text))
            execution.report(replace(made, old="25", new="50") if state == "changed" else made)
    return execution.outcome()


@pytest.mark.parametrize(
    ("command", "way"),
    [
        (CAPTURE, ("accepted", "agreed", "recording", "writing", "written")),
        (SETTING, ("accepted", "agreed", "changing", "changed")),
    ],
)
def test_a_command_stands_where_its_slowest_rank_is(command, way):
    events, before = [], "sent"
    for state in way:
        events.append((0, state))
        assert (played(command, *events).stage, played(command, *events).done) == (before, False)
        events.append((1, state))
        before = state
        assert played(command, *events).stage == state
    outcome = played(command, *events)
    assert (outcome.done, outcome.step, outcome.reason) == (True, 40, "")
    assert [each.state for each in outcome.ranks] == [way[-1]] * 2


CHANGED, NOT_REPORTED = (0, "changed"), "rank 1 has not reported"
ONLY = "changed on rank 0 only: rank 1 failed: no"
NOT_DONE = "rank 0 ended before it was done"


@pytest.mark.parametrize(
    ("command", "events", "state", "reason", "done"),
    [
        # One rank that does not do it fails the whole, and is named.
        (CAPTURE, [(0, "accepted"), (1, "refused", "no")], "failed", "rank 1 refused: no", False),
        (CAPTURE, [(0, "accepted"), (1, "busy", "no")], "failed", "rank 1 is busy: no", False),
        (CAPTURE, [(0, "failed", "a"), (1, "failed", "b")], "failed", "rank 0 failed: a", True),
        (SETTING, [CHANGED, (1, "failed", "no")], "failed", ONLY, True),
        # What is said of another rank is said first.
        (CAPTURE, [(0, "failed", "a"), (1, "failed", "rank 0 left")], "failed", "rank 0 left", True),
        # A lost rank fails a capture.
        (CAPTURE, [(0, "accepted"), (1, SILENT)], "failed", "rank 1 does not answer", False),
        (CAPTURE, [(0, "written"), (1, ENDED)], "failed", "rank 1 ended before it was done", True),
        (CAPTURE, [(0, "written"), (1, "written"), (1, ENDED)], "written", "", True),
        # A lost rank may have made a change, unless all ended before they had agreed.
        (SETTING, [CHANGED, (1, "agreed"), (1, ENDED)], "unknown", "rank 1 ended before it reported", True),
        (SETTING, [(0, "accepted"), (1, SILENT)], "unknown", NOT_REPORTED, False),
        (SETTING, [(0, "failed", "rank 1 is late"), (1, SILENT)], "failed", "rank 1 is late", True),
        (SETTING, [(0, "accepted"), (1, ENDED), (0, ENDED)], "failed", NOT_DONE, True),
        (SETTING, [CHANGED, (1, "changed"), (0, ENDED)], "changed", "", True),
        # A rank that cannot learn what was decided says so once it does.
        (SETTING, [CHANGED, (1, "unknown", "a")], "unknown", "rank 1 does not know: a", True),
        (SETTING, [CHANGED, (1, "unknown", "a"), (1, "agreed")], "agreed", "", False),
        (SETTING, [CHANGED, (1, "unknown", "a"), (1, "changed")], "changed", "", True),
        # A lost rank that reports again is lost no more, and a late report takes nothing back.
        (SETTING, [CHANGED, (1, "agreed"), (1, ENDED), (1, "changed")], "changed", "", True),
        (SETTING, [CHANGED, (1, "changing"), (1, SILENT), (1, "agreed")], "changing", "", False),
    ],
)  # fmt: skip
def test_what_becomes_of_a_command(command, events, state, reason, done):
    outcome = played(command, *events)
    assert (outcome.stage, outcome.reason, outcome.done) == (state, reason, done)


def test_an_execution_goes_on_from_its_outcome():
    begun = [(0, "accepted"), (1, "agreed"), (0, SILENT)]
    resumed = CommandProgress.resume(SETTING, played(SETTING, *begun))
    assert resumed.outcome() == played(SETTING, *begun)
    resumed.lose(1, ENDED)
    assert resumed.outcome() == played(SETTING, *begun, (1, ENDED))


@pytest.mark.parametrize(
    ("events", "logged"),
    [
        ([CHANGED, (1, "changed")], "changed"),
        ([CHANGED, (1, "agreed"), (1, ENDED)], "unknown"),
        ([CHANGED, (1, "failed", "")], "failed"),
        ([(0, "failed", ""), (1, "refused", "")], "refused"),
        ([(0, "busy", ""), (1, "failed", "")], "busy"),
    ],
)
def test_the_log_names_what_one_rank_refused(events, logged):
    assert logged_state(played(SETTING, *events)) == logged


# Of several hubs


def on_two_hubs(first, second, unreachable=None, command=SETTING):
    outcomes = [played(command, *first), played(command, *second, ranks=(2, 3))]
    return merged(command, outcomes, unreachable or {})


@pytest.mark.parametrize(("state", "done"), [("agreed", False), ("changed", True)])
def test_the_slowest_rank_of_any_hub_counts(state, done):
    outcome = on_two_hubs([CHANGED, (1, "changed")], [(2, "changed"), (3, state)])
    assert (outcome.stage, outcome.done, outcome.step) == (state, done, 40)
    assert (outcome.old, outcome.new) == ("25", "50")


@pytest.mark.parametrize(
    ("others", "state", "reason"),
    [
        ([(2, ENDED), (3, ENDED)], "failed", "rank 0 ended before it was done"),
        ([(2, "changed"), (3, "changed")], "unknown", "rank 0 ended before it reported"),
    ],
)
def test_ended_ranks_may_have_acted_if_another_hub_s_did(others, state, reason):
    outcome = on_two_hubs([(0, "accepted"), (0, ENDED), (1, ENDED)], others)
    assert (outcome.stage, outcome.reason, outcome.done) == (state, reason, True)


@pytest.mark.parametrize(("command", "state"), [(SETTING, "unknown"), (CAPTURE, "failed")])
def test_unreachable_ranks_are_unknown_unless_they_had_reported(command, state):
    final = "changed" if command is SETTING else "written"
    away = dict.fromkeys((2, 3), "rank 2 is on gpu-b")
    outcome = on_two_hubs([(0, final), (1, final)], [(2, "agreed"), (3, final)], away, command)
    assert (outcome.stage, outcome.reason, outcome.done) == (state, "rank 2 is on gpu-b", True)
    assert [each.state for each in outcome.ranks] == [final, final, state, final]


def test_hubs_without_ranks_have_failed_once_all_have_said_so():
    nobody = played(SETTING, ranks=())
    assert (nobody.state, nobody.reason, nobody.done) == ("failed", "no rank is there to answer", True)
    assert [each.rank for each in played(SETTING, (5, "changed")).ranks] == [0, 1, 5]
    awaited = replace(nobody, state="sent", reason="", done=False)
    assert merged(SETTING, [nobody, awaited], {}) == awaited
    assert merged(SETTING, [nobody, nobody], {}) == nobody
