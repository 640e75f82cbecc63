"""``--json``: which lines come, and when it ends."""

import io

import pytest
from msgspec.structs import replace

from overlaptop.commands import stream
from overlaptop.commands.output import CommandError
from overlaptop.commands.stream import RecordWriter
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.messages import AGENT_DISABLED, RESTARTED, Notice, OwnCost, RankEnd, RankStalled
from tests.fleet.builders import T0, detail, device, info, numa, sample, status, unmeasured, welcome

from .fakes import PlayedSession, arrival, end, rank_info, totals
from .running import check_page, records

pytestmark = pytest.mark.usefixtures("quickly")


def played(session, steps=None, *, detail=False):
    """Whether there were enough steps, and all records."""
    out = io.StringIO()
    enough = stream.stream(session, RecordWriter(out, steps, detail=detail), detail=detail)
    return enough, records(out.getvalue())


def places(found):
    return [(each["rank"], each["step"]) for each in found if each["type"] == "step"]


def aside(rank):
    """The rank's agent gives up."""
    return [
        Notice(rank, 0, "error", "agent disabled itself: OSError in a hook: \x1b no"),
        rank_info(rank, source="none", source_reason=AGENT_DISABLED),
    ]


KILLED = RankEnd(0, 7, False, exit_code=-9)
STUCK = [RankStalled(rank, True, (), ("a.py:7 barrier",), since_ns=T0) for rank in (0, 1)]
NOTICES = [Notice(0, T0, "warning", text) for text in ("pid 2 (b.py) is not shown", f"{RESTARTED} once")]
COSTS = [OwnCost(1, change, 0.004, 0.01, 0.02, watched=True) for change in (0.001, 0.002)]
SAME = ("job", "source", "bounds", "compute_exact", "captured", "transitional", "trial")
STREAMS = {
    "how each rank ended": [
        [totals(0, 0), KILLED, RankEnd(1, 8, True, "RuntimeError: lost", 1), status(ended=True)],
    ],
    "a job started again counts from 0": [
        [totals(0, 5), KILLED],
        [replace(welcome(), started_ns=T0 + 1), rank_info(0, pid=999), totals(0, 0), *end()],
    ],
    "troubles and notices": [[*STUCK, *NOTICES], *([] for _ in range(30)), end()],
    "lost steps are counted in the next record": [
        [totals(0, 0), totals(1, 0)],
        [totals(0, 11_003), totals(1, 1)],
        [totals(0, 11_004), totals(1, 5), *end()],
    ],
    "steps that the agent dropped are not lost": [
        [totals(0, 7), totals(0, 10, dropped=2), totals(0, 13, dropped=3), rank_info(0, pid=999)],
        [*(totals(0, number, start_ns=(1 << 61) + number) for number in (2, 3)), *end()],
    ],
    "costs whenever more is known": [[COSTS[0], totals(0, 0)], [COSTS[0]], [COSTS[1], *end()]],
    "samples": [[device(0), numa(0), sample(0, 1), sample(1, 1)], [totals(0, 0), sample(0, 2), *end()]],
    "a rank without a gpu whenever it changes": [
        [device(0, ""), numa(0), numa(1)],
        [numa(0, reason="the same in other words"), device(1)],
        [numa(0, cpu_set="0-3"), *end()],
    ],
    "with detail a step is held until its waits are known": [
        [totals(0, 0), detail(0, 0)],
        [unmeasured(0, 1), totals(1, 0), detail(1, 0), unmeasured(1, 1)],
        [totals(0, 2), totals(1, 2)],  # their details never come
        end(),
    ],
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_as_in_its_page(name, capsys):
    """Without fields that are null or the same in all."""
    _, found = played(PlayedSession(arrival(), *STREAMS[name]), detail="detail" in name)
    lines = [
        " ".join(f"{key}={value}" for key, value in each.items() if value is not None and key not in SAME)
        for each in found
    ]
    check_page(f"stream {name}", capsys.readouterr().err + "\n".join(lines))


def test_a_job_without_steps_says_what_ends_one(capsys, monkeypatch):
    monkeypatch.setattr(stream, "HINT_AFTER_S", -1.0)
    reason = "no step seen yet: an optimizer's step, or overlaptop.agent.step(), ends one"
    played(PlayedSession([welcome(), info(0, source="none", source_reason=reason)], end()))
    assert capsys.readouterr().err.count(reason) == 1
    played(PlayedSession([*arrival(), totals(0, 0)], end()))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("batches", "enough", "found"),
    [
        (
            [arrival(), [totals(0, at) for at in range(3)], [totals(1, at) for at in range(3)]],
            True, [(0, 0), (0, 1), (1, 0), (1, 1)],
        ),
        ([arrival(), [totals(0, 0), *end()]], False, [(0, 0)]),
        # A rank of another node, which is never seen.
        ([[welcome(), rank_info(0)], [totals(0, 0), totals(0, 1)]], True, [(0, 0), (0, 1)]),
        # Of two agents one goes on.
        ([arrival(), [*aside(0), totals(1, 0)], [totals(1, 1)]], True, [(1, 0), (1, 1)]),
    ],
)  # fmt: skip
def test_steps_gives_exactly_as_many_lines_of_each_rank(batches, enough, found, monkeypatch):
    monkeypatch.setattr(stream, "UNSEEN_LIMIT_S", 0.0)
    ended, lines = played(PlayedSession(*batches), steps=2)
    assert (ended, places(lines)) == (enough, found)


def test_steps_that_no_agent_will_tell_of_are_not_waited_for():
    session = PlayedSession(arrival(), [totals(0, 0)], [*aside(0), *aside(1)])
    with pytest.raises(CommandError, match=r"any more: agent disabled itself: OSError .*: \? no"):
        played(session, steps=2)


def test_connection_that_broke_for_good_is_a_failure():
    with pytest.raises(CommandError, match="did not come back"):
        played(PlayedSession(arrival(), hub_state=HubState.LOST))
