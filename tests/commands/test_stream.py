"""``--json``: which lines come, and when it ends."""

import io

import pytest
from msgspec.structs import replace

from overlaptop.commands.output import CommandError
from overlaptop.commands.stream import RecordWriter, stream
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.messages import AGENT_DISABLED, RESTARTED, Notice, OwnCost, RankEnd, RankStalled
from tests.fleet.builders import T0, detail, device, info, numa, sample, status, unmeasured, welcome

from .fakes import PlayedSession, arrival, end, rank_info, totals
from .running import records

pytestmark = pytest.mark.usefixtures("quickly")


def played(session, steps=None, *, ends=False, detail=False):
    out = io.StringIO()
    enough = stream(session, RecordWriter(out, steps, detail=detail), detail=detail)
    found = records(out.getvalue())
    return enough, [record for record in found if ends or record["type"] != "end"]


def places(found):
    return [(record["rank"], record["step"]) for record in found]


def test_last_records_say_how_each_rank_ended():
    ends = [RankEnd(0, 7, False, exit_code=-9), RankEnd(1, 8, True, "RuntimeError: lost", 1)]
    session = PlayedSession(arrival(), [totals(0, 0), *ends, status(ended=True)])
    _, (*_, first, second) = played(session, ends=True)
    assert first == {
        "type": "end", "job": "job-1", "rank": 0, "at_ns": 7, "failed": True, "first": True,
        "exit_status": None, "signal": "SIGKILL", "failure": None,
    }  # fmt: skip
    assert (second["first"], second["exit_status"], second["failure"]) == (False, 1, "RuntimeError: lost")


def test_a_job_that_is_started_again_goes_on_from_step_0(capsys):
    again = replace(welcome(), started_ns=T0 + 1)
    session = PlayedSession(
        arrival(),
        [totals(0, 5), RankEnd(0, 7, False, exit_code=-9)],
        [again, rank_info(0, pid=999), totals(0, 0), *end()],
    )
    _, found = played(session, ends=True)
    of_rank = (each for each in found if each.get("rank") == 0)
    kinds = [(each["type"], each.get("step"), each.get("signal")) for each in of_rank]
    assert kinds[:3] == [("step", 5, None), ("end", None, "SIGKILL"), ("step", 0, None)]
    assert "the job was started again" in capsys.readouterr().err


def test_trouble_restart_and_process_not_shown_are_records():
    where = [RankStalled(rank, True, (), ("a.py:7 barrier",), since_ns=T0) for rank in (0, 1)]
    words, again = "pid 2 (b.py) is not shown", f"{RESTARTED} once"
    quiet = [[] for _ in range(30)]
    restart = Notice(0, T0, "warning", again)
    session = PlayedSession([*arrival(), *where, Notice(0, T0, "warning", words), restart], *quiet, end())
    _, found = played(session)
    assert [record["type"] for record in found] == ["notice", "notice", "trouble"]
    assert [each["text"] for each in found[:2]] == [again, words]
    assert found[2] == {
        "type": "trouble", "job": "job-1", "kind": "no first step", "ranks": [], "since_ns": T0,
        "text": "starting for 20 s: ranks 0-1 are in barrier (a.py:7)",
    }  # fmt: skip


def test_a_job_without_steps_says_what_ends_one(capsys, monkeypatch):
    monkeypatch.setattr("overlaptop.commands.stream.HINT_AFTER_S", -1.0)
    reason = "no step seen yet: an optimizer's step, or overlaptop.agent.step(), ends one"
    played(PlayedSession([welcome(), info(0, source="none", source_reason=reason)], end()))
    assert capsys.readouterr().err.count(reason) == 1
    played(PlayedSession([*arrival(), totals(0, 0)], end()))
    assert capsys.readouterr().err == ""


def test_steps_gives_exactly_as_many_lines_of_each_rank():
    session = PlayedSession(
        arrival(), [totals(0, 0), totals(0, 1), totals(0, 2)], [totals(1, 0)], [totals(1, 1), totals(1, 2)]
    )
    enough, found = played(session, steps=2)
    assert enough
    assert places(found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    enough, found = played(PlayedSession(arrival(), [totals(0, 0), *end()]), steps=2)
    assert (enough, len(found)) == (False, 1)


def test_lost_steps_are_counted_in_the_next_record():
    session = PlayedSession(
        arrival(),
        [totals(0, 0), totals(1, 0)],
        [totals(0, 11_003), totals(1, 1)],
        [totals(0, 11_004), totals(1, 5), *end()],
    )
    _, found = played(session)
    dropped = [(record["rank"], record["step"], record["dropped"]) for record in found]
    assert dropped == [(0, 0, 0), (1, 0, 0), (0, 11_003, 11_002), (1, 1, 0), (0, 11_004, 11_002), (1, 5, 3)]


def test_what_an_agent_counted_itself_is_not_counted_as_lost():
    steps = [totals(0, 7), totals(0, 10, dropped=2), totals(0, 13, dropped=3)]
    again = [totals(0, number, start_ns=(1 << 61) + number) for number in (2, 3)]
    _, found = played(PlayedSession([*arrival(), *steps, rank_info(0, pid=999), *again], end()))
    assert [record["dropped"] for record in found] == [0, 2, 4, 0, 0]


def test_ranks_of_another_node_are_not_waited_for(monkeypatch):
    monkeypatch.setattr("overlaptop.commands.stream.UNSEEN_LIMIT_S", 0.0)
    enough, found = played(PlayedSession([welcome(), rank_info(0)], [totals(0, 0)]), steps=1)
    assert enough
    assert places(found) == [(0, 0)]


def aside(rank):
    """The rank's agent gives up."""
    return [
        Notice(rank, 0, "error", "agent disabled itself: OSError in a hook: \x1b no"),
        rank_info(rank, source="none", source_reason=AGENT_DISABLED),
    ]


def test_steps_that_no_agent_will_tell_of_are_not_waited_for():
    for steps in ([], [totals(0, 0)]):
        session = PlayedSession(arrival(), steps, [*aside(0), *aside(1)])
        with pytest.raises(CommandError, match=r"any more: agent disabled itself: OSError .*: \? no"):
            played(session, steps=2)
    enough, _ = played(PlayedSession(arrival(), [*aside(0), *aside(1)], end()))
    assert not enough
    session = PlayedSession(arrival(), [totals(0, 0), *aside(0)], [totals(1, 0)], [totals(1, 1)])
    enough, found = played(session, steps=2)  # the other rank goes on
    assert (enough, places(found)) == (True, [(0, 0), (1, 0), (1, 1)])


def test_connection_that_broke_for_good_is_a_failure():
    with pytest.raises(CommandError, match="did not come back"):
        played(PlayedSession(arrival(), hub_state=HubState.LOST))


def test_each_sample_is_a_line_that_counts_as_no_step():
    known = [device(0), numa(0), sample(0, 1), sample(1, 1), sample(0, 2)]
    session = PlayedSession(arrival(), known, [totals(0, 0), sample(0, 3), totals(1, 0)], [totals(0, 1)])
    enough, found = played(session, steps=1)
    assert enough
    samples = [(each["rank"], each["at_ns"] - T0) for each in found if each["type"] == "device"]
    assert samples == [(0, 1e9), (1, 1e9), (0, 2e9), (0, 3e9)]
    assert places([record for record in found if record["type"] == "step"]) == [(0, 0), (1, 0)]
    assert (found[0]["gpu_uuid"], found[0]["cpu_set"]) == ("GPU-0", "0-31")
    assert (found[1]["gpu_uuid"], found[1]["cpu_set"]) == (None, None)


def test_what_an_agent_costs_is_a_line_whenever_more_is_known():
    first, second = (OwnCost(1, change, 0.004, 0.01, 0.02, watched=True) for change in (0.001, 0.002))
    session = PlayedSession(arrival(), [first, totals(0, 0)], [first], [second, *end()])
    costs = [record for record in played(session)[1] if record["type"] == "cost"]
    assert [(each["rank"], each["change"]) for each in costs] == [(1, 0.001), (1, 0.002)]


def test_a_rank_without_a_gpu_has_a_record_whenever_it_changes():
    same = numa(0, reason="the same in other words")
    changed = [numa(0, cpu_set="0-3"), *end()]
    session = PlayedSession(arrival(), [device(0, ""), numa(0)], [totals(0, 0)], [same], changed)
    _, found = played(session)
    said = [(record["at_ns"], record["cpu_set"]) for record in found if record["type"] == "device"]
    assert said == [(None, "0-31"), (None, "0-3")]
    # It may still turn out to have one.
    _, found = played(PlayedSession(arrival(), [numa(0)], [device(0), *end()]))
    assert found == []


def test_with_detail_a_step_is_held_until_its_waits_are_known():
    session = PlayedSession(
        arrival(),
        [totals(0, 0), detail(0, 0)],
        [unmeasured(0, 1), totals(1, 0), detail(1, 0), unmeasured(1, 1)],
        [totals(0, 2), totals(1, 2)],  # their details never come
        end(),
    )
    _, found = played(session, detail=True)
    collectives = [record for record in found if record["type"] == "collective"]
    assert [(each["op"], each["step"], each["ranks"]) for each in collectives] == [
        ("allreduce_", 0, [0, 1]),
        ("_allgather_base_", 0, [0, 1]),
    ]
    assert collectives[0]["wait_ns"] == [0, 0]
    assert collectives[0]["least_transfer_ns"] == 10_000_000
    steps = [record for record in found if record["type"] == "step"]
    assert [(each["rank"], each["step"], each["transfer_ns"]) for each in steps] == [
        (0, 0, 20_000_000), (0, 1, None), (1, 0, 20_000_000), (1, 1, None), (0, 2, None), (1, 2, None),
    ]  # fmt: skip
