"""``overlaptop capture``: what it prints, and its exit status."""

from functools import partial

import pytest

from overlaptop.commands import capture
from overlaptop.commands.output import CommandError
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire import commands
from overlaptop.wire.commands import Command

from .fakes import PlayedSession, arrival, end, reported
from .running import records

pytestmark = pytest.mark.usefixtures("quickly")
COMMAND = commands.make(commands.CAPTURE, {"steps": 5})


reply = partial(reported, COMMAND)


def given():
    return [*arrival(), Command(COMMAND.id, COMMAND.name, COMMAND.arguments, "me", 1_700_000_000 * 10**9)]


def test_each_rank_has_a_line_and_progress_goes_to_stderr(capsys):
    session = PlayedSession(
        given(),
        [reply(0, "accepted"), reply(1, "accepted")],
        [reply(0, "agreed", 7), reply(1, "agreed", 7)],
        [reply(0, "written", 7, "/there/rank0.json.gz")],
        [reply(1, "written", 7, "/there/rank1.json.gz")],
    )
    capture.print_traces(session, COMMAND, as_json=False)
    out, err = capsys.readouterr()
    assert out.splitlines() == ["/there/rank0.json.gz", "/there/rank1.json.gz"]
    assert err.splitlines() == [
        f"overlaptop: capture (steps 5): {words}" for words in ("accepted", "agreed on step 7", "written")
    ]


FAILING = (
    reply(0, "written", 7, "/there/\x1b[2Jrank0.json.gz"),
    reply(1, "failed", None, "OSError: disk full"),
)


def test_failure_names_the_rank_and_has_a_record_of_each(capsys):
    with pytest.raises(CommandError, match="no capture: rank 1 failed: OSError: disk full") as failure:
        capture.print_traces(PlayedSession(given(), FAILING), COMMAND, as_json=False)
    assert failure.value.status == 1
    assert capsys.readouterr().out.splitlines() == ["/there/?[2Jrank0.json.gz"]
    with pytest.raises(CommandError):
        capture.print_traces(PlayedSession(given(), FAILING), COMMAND, as_json=True)
    found = records(capsys.readouterr().out)
    assert [(r["rank"], r["state"], r["path"], r["reason"]) for r in found] == [
        (0, "written", "/there/\x1b[2Jrank0.json.gz", None),
        (1, "failed", None, "OSError: disk full"),
    ]


@pytest.mark.parametrize(
    ("then", "hub_state", "words"),
    [
        (end(), HubState.LIVE, "rank 0 ended before it was done"),
        ([], HubState.LOST, "the connection to the job broke"),
    ],
)
def test_job_that_ends_or_stays_away_is_no_endless_wait(then, hub_state, words):
    session = PlayedSession(given(), [reply(0, "recording", 7)], then, hub_state=hub_state)
    with pytest.raises(CommandError, match=words):
        capture.print_traces(session, COMMAND, as_json=False)
