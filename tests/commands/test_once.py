"""``--once``: the table, and how long it waits for what is in it."""

import io
from math import inf
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from overlaptop.commands import following
from overlaptop.commands.findings import SAY_AGAIN_NS
from overlaptop.commands.following import settle, settle_waits
from overlaptop.commands.once import render
from overlaptop.commands.output import CommandError
from overlaptop.commands.stream import RecordWriter
from overlaptop.fleet.snapshot import HubState
from overlaptop.wire.messages import RESTARTED, Notice, RankEnd
from tests.fleet.builders import (
    GB,
    T0,
    Clock,
    S,
    device,
    numa,
    sample,
    status,
    unmeasured,
    welcome,
)
from tests.tui.waits import split_step, waiting_job

from .fakes import PlayedSession, arrival, rank_info, totals
from .running import check_page, records

BOTH = [*arrival(), totals(0, 1284), totals(1, 1284)]
HOSTILE = "\x1b]0;pwned\x07\x9b2J\r\n\u202e"
MISPLACED = {"state": "wrong node", "reason": "runs on node 0, its GPU is on node 1",
             "advice": "torchrun --numa-binding=node\x1b[2J"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("bounds", BOTH),
        # Unknown is a dash, never zero.
        ("one rank unmeasured and one not seen", [welcome(), rank_info(0), status(), unmeasured(0, 3)]),
        (
            "means of the steps in the window",
            [
                *arrival(), *(totals(rank, at, hidden=5 + 10 * at) for at in (0, 1) for rank in (0, 1)),
                unmeasured(0, 7),
            ],
        ),
        (
            "how ranks ended",
            [*BOTH, RankEnd(1, 5, True, "ValueError: boom"), RankEnd(0, 9 * S, False), status(ended=True)],
        ),
        (
            "words that would steer the terminal",
            [
                replace(welcome(), script=HOSTILE, host=HOSTILE),
                *(rank_info(rank, device=HOSTILE, backend=HOSTILE, source=HOSTILE) for rank in (0, 1)),
                status(), totals(0, 0), totals(1, 0),
            ],
        ),
        (
            "links and numa nodes",
            [
                *BOTH, device(0), numa(0, **MISPLACED), numa(1, gpu_node=None, cpu_set="", **MISPLACED),
                sample(0, nvlink=(281 * GB, 140 * GB), pcie=(1_200_000_000, 600_000_000)),
            ],
        ),
        (
            "a process not shown and a restart",
            [
                *BOTH, Notice(0, T0, "warning", "pid 2 (b.py) is not shown: it says so too"),
                Notice(0, T0, "warning", f"{RESTARTED} once"),
            ],
        ),
    ],
)  # fmt: skip
def test_a_job_is_printed_as_in_its_page(name, messages, monkeypatch, in_utc):
    monkeypatch.setattr(following, "LIMIT_S", 0.0)
    page = render(settle(PlayedSession(messages)))
    assert page.replace("\n", "").isprintable()
    check_page(f"once {name}", page)


def test_a_late_rank_is_printed_with_its_cause_and_until_when():
    session = waiting_job(ranks=2, late=lambda _: 1)
    check_page("once a late rank", render(session.tick()))
    session.say(RankEnd(0, T0 + 1, True, "ValueError: boom"))
    check_page("once a late rank until a failure", render(session.tick()))
    assert "finding" not in render(waiting_job(late_ms=0).tick())


class LongSteps(PlayedSession):
    """Rank 0 is late in steps of this length. Timelines come from the moment they are asked for; from step
    `stands` on, no step ends.
    """

    def __init__(self, clock, step_s, stands=inf):
        self._step_ns, self._stands, self._sent, self._watched = round(step_s * S), stands, 1, False
        super().__init__([*arrival(), *self._steps(0)[::2]], hub_state=HubState.LIVE)
        self.clock = clock

    def watch(self, ranks, bursts=0):
        self._watched = set(ranks) == {0, 1}

    def tick(self):
        if self._watched and self._sent < min((self.clock.at_ns - T0) / self._step_ns, self._stands):
            self._batches.append(self._steps(self._sent))
            self._sent += 1
        return super().tick()

    def _steps(self, number):
        when = {"step_ns": self._step_ns, "start_ns": T0 + number * self._step_ns}
        made = (split_step(rank, number, late_ms=16 * (rank == 0)) for rank in (0, 1))
        return [replace(each, **when) for of_rank in made for each in of_rank]


@pytest.mark.parametrize(
    ("session", "said", "limit_s"),
    [
        ({"step_s": 1.0}, "No rank is clearly late.", 18),
        ({"step_s": 12.0}, "", 30),
        ({"step_s": 1.0, "stands": 2}, "", 20),
    ],
)
def test_who_is_late_in_long_steps_is_waited_for_within_bounds(session, said, limit_s, monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=clock.monotonic_s))
    monkeypatch.setattr(following, "pause", lambda *_: None)
    page = render(settle_waits(LongSteps(clock, **session)))
    assert said in page.splitlines()[1]
    assert clock.monotonic_s() <= limit_s + 2
    assert "for enough measured steps to say who is late" in capsys.readouterr().err


def test_steps_of_the_hubs_history_are_not_the_present_state():
    batches = [[totals(0, number), totals(1, number)] for number in (760, 1_134, 2_000)]
    snapshot = settle(PlayedSession(arrival()[:-1], *batches[:2], [*batches[2], status()]))
    assert [view.last.step for view in snapshot.ranks] == [2000, 2000]


@pytest.mark.parametrize("hub_state", [HubState.LIVE, HubState.ENDED])
@pytest.mark.parametrize(
    ("messages", "words"),
    [([*arrival()[:-1], totals(0, 7), totals(1, 7)], "sent its history only"), ([], "does not answer")],
)
def test_a_present_state_that_does_not_come_is_a_failure(hub_state, messages, words, monkeypatch):
    for limit in ("LIMIT_S", "HISTORY_LIMIT_S"):
        monkeypatch.setattr(following, limit, 0.0)
    with pytest.raises(CommandError, match=words):
        settle(PlayedSession(messages, hub_state=hub_state))


def test_finding_is_a_record_now_and_then_while_it_holds():
    out, session = io.StringIO(), waiting_job()
    writer, rules = RecordWriter(out), []
    for _ in range(3):
        writer.write(session.tick())
        found = records(out.getvalue())
        rules.append([each["ranks"] for each in found if each.get("rule") == "slow_compute"])
        session.clock.pass_s(SAY_AGAIN_NS / 1e9 / 2)
    assert rules == [[[2]], [[2]], [[2], [2]]]
