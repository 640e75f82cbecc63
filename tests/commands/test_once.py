"""``--once``: the table."""

import io
import re
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
from overlaptop.text import clock
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
from tests.formats.traces import DATA
from tests.tui.waits import split_step, waiting_job

from .fakes import PlayedSession, arrival, rank_info, totals
from .running import records, run_here


def page_of(*messages, ascii_only=False):
    """The table of a job of which these have come."""
    return render(settle(PlayedSession(arrival(), messages)), ascii_only=ascii_only)


def cells(page, rank):
    row = next(line for line in page.splitlines() if line.lstrip().startswith(f"{rank} "))
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_each_rank_has_a_row_and_a_bound_is_marked_once():
    messages = [totals(0, 1284), totals(1, 1284)]
    title, said, summary, *_, last = page_of(*messages).splitlines()
    assert said == "who waits for whom is not known: no timeline of ranks 0-1 is here"
    assert "train.py · 2 ranks · gpu-a · NVIDIA H200 · nccl 2.28.9 · job job-1 · live" in title
    wanted = {"overlap": "≤75.0 %", "exposed": "5.00 ms", "speed-up": "1.30×, at best by overlap 1.44×"}
    assert wanted.items() <= dict(each.split(" ", 1) for each in summary.split("   ")).items()
    assert last.startswith("compute is an upper bound")
    assert cells(page_of(*messages), 1) == [
        "1", "1,284", "50.0 ms", "75.0 %", "5.00 ms", "–", "5.00 ms", "–", "45.0 ms", "20.0 ms",
        "3", "0", "events", "running",
    ]  # fmt: skip
    page = page_of(*messages, ascii_only=True)
    assert page.isascii()
    assert "overlap <=75.0 %   exposed 5.00 ms" in page


def test_who_is_late_is_the_first_line_as_on_the_overview():
    page = render(waiting_job(late=lambda _: 0, ranks=2).tick())
    header = next(line for line in page.splitlines() if line.startswith("rank  step"))
    assert header.split().index("waiting") == header.split().index("exposed") + 1
    said = "rank 0 is late in 12 of 12 collectives; rank 1 waits 16.0 ms a step (20.0 %)"
    assert page.splitlines()[1] == said


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


def test_what_is_not_known_is_a_dash_never_zero(monkeypatch):
    monkeypatch.setattr("overlaptop.commands.following.LIMIT_S", 0.0)
    page = render(settle(PlayedSession([welcome(), rank_info(0), status(), unmeasured(0, 3)])))
    assert cells(page, 0)[3:10] == ["–"] * 7
    assert cells(page, 1)[1:4] == ["–"] * 3
    assert cells(page, 1)[-1] == "not seen here"


def test_rows_are_means_over_the_steps_of_the_totals():
    page = page_of(
        *(totals(rank, number, hidden=hidden) for number, hidden in enumerate((5, 15)) for rank in (0, 1)),
        unmeasured(0, 7),
    )
    assert "overlap ≤50.0 %   exposed 10.0 ms" in page
    assert "last 20 s (2 steps), mean of 2 ranks" in page
    assert [cells(page, rank)[1:5] for rank in (0, 1)] == [
        [newest, "50.0 ms", "50.0 %", "10.0 ms"] for newest in ("7", "1")
    ]


def test_steps_of_the_hubs_history_are_not_the_present_state():
    batches = [[totals(0, number), totals(1, number)] for number in (760, 1_134, 2_000)]
    page = render(settle(PlayedSession(arrival()[:-1], *batches[:2], [*batches[2], status()])))
    assert [cells(page, rank)[1] for rank in (0, 1)] == ["2,000", "2,000"]


@pytest.mark.parametrize("hub_state", [HubState.LIVE, HubState.ENDED])
@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([welcome(), rank_info(0), rank_info(1), totals(0, 7), totals(1, 7)], "sent its history only, not"),
        ([], "does not answer"),
    ],
)
def test_a_present_state_that_does_not_come_is_a_failure(hub_state, messages, words, monkeypatch):
    for limit in ("LIMIT_S", "HISTORY_LIMIT_S"):
        monkeypatch.setattr(f"overlaptop.commands.following.{limit}", 0.0)
    with pytest.raises(CommandError, match=words):
        settle(PlayedSession(messages, hub_state=hub_state))


def test_table_has_how_ranks_ended_and_which_failed_first():
    ends = [RankEnd(1, 5, clean=True, failure="ValueError: boom"), RankEnd(0, 9_000_000_000, clean=False)]
    page = page_of(totals(0, 0), totals(1, 0), *ends, status(ended=True))
    assert page.splitlines()[1].startswith("rank 1 failed: ValueError: boom; 1 other rank ended badly")
    assert cells(page, 1)[-1] == "failed: ValueError: boom"
    assert cells(page, 0)[-1] == "died after rank 1"


def test_words_from_a_machine_cannot_steer_the_terminal():
    hostile = "\x1b]0;pwned\x07\x9b2J\r\n\u202e"
    job = replace(welcome(), script=hostile, host=hostile)
    infos = [rank_info(rank, device=hostile, backend=hostile, source=hostile) for rank in (0, 1)]
    session = PlayedSession([job, *infos, status()], [totals(0, 0), totals(1, 0)])
    page = render(settle(session))
    assert all(line.isprintable() for line in page.split("\n"))
    assert len(page.split("\n")) == 7
    assert "]0;pwned" in page


def test_rates_of_links_and_numa_nodes_and_the_remedy_stand_below():
    assert "NVLink" not in page_of(totals(0, 0), totals(1, 0), device(0, ""))
    rates = sample(0, nvlink=(281 * GB, 140 * GB), pcie=(1_200_000_000, 600_000_000))
    reason, advice = "runs on node 0, its GPU is on node 1", "torchrun --numa-binding=node\x1b[2J"
    wrong = {"state": "wrong node", "reason": reason, "advice": advice}
    known = [device(0), numa(0, **wrong), rates, numa(1, gpu_node=None, cpu_set="", **wrong)]
    page = page_of(*known, totals(0, 0), totals(1, 0))
    below = page[page.index("NVLink") :]
    assert cells(below, 0) == [
        "0", "281 GB/s", "140 GB/s", "62 %", "1.20 GB/s", "0.60 GB/s", "2 %", "0", "CPUs 0-31",
        "wrong node",
    ]  # fmt: skip
    assert cells(below, 1) == ["1", *["–"] * 8, "wrong node"]
    mended = f"rank 0, 1: {reason}. To mend it: torchrun --numa-binding=node?[2J"
    assert [line for line in page.splitlines() if "To mend it" in line] == [mended]


def page_of_one_of_two(**changes):
    """The table of a job whose second rank sends nothing."""
    return render(settle(PlayedSession([welcome(), rank_info(0, **changes), status(), totals(0, 1)])))


def test_rank_that_was_never_seen_is_named(monkeypatch):
    monkeypatch.setattr("overlaptop.commands.following.LIMIT_S", 0.0)
    page = page_of_one_of_two(local_world_size=2)
    assert cells(page, 1)[-1] == "not seen here"
    assert page.splitlines()[1].endswith("no timeline of ranks 0-1 is here")


def test_process_not_shown_and_restart_are_named():
    words = "rank 0 is already reported by pid 1 (a.py); pid 2 (b.py) is not shown: it says so too"
    notices = [Notice(0, T0, "warning", each) for each in (words, f"{RESTARTED} once")]
    page = page_of(totals(0, 1), totals(1, 1), *notices)
    assert words in page.splitlines()
    assert f"at {clock(T0)} torchrun restarted the job once" in page.splitlines()


def test_once_says_how_many_findings_there_are_and_the_first():
    session = waiting_job(ranks=2, late=lambda _: 1)
    second, third = render(session.tick()).splitlines()[2:4]
    assert third.startswith("to do: nvidia-smi -q")
    assert second.startswith(("1 finding", "2 findings"))
    assert "rank 1 computes 16.0 ms a step longer than rank 0" in second
    assert "finding" not in render(waiting_job(late_ms=0).tick())
    session.say(RankEnd(0, T0 + 1, True, "ValueError: boom"))
    page = render(session.tick())
    assert re.search(
        r"^until then: rank 1 is late .*\nuntil then: \d findings?.*\nuntil then: overlap", page, re.M
    )
    assert "to do:" not in page


def test_analyze_says_why_a_rank_is_late():
    page = run_here("analyze", str(DATA / "ddp_25mb")).stdout.splitlines()
    (at,) = (at for at, line in enumerate(page) if line.startswith("rank 2 is launch-bound"))
    assert "at most 8.87 ms a step to win, likely, launch_bound" in page[at]
    assert page[at + 1].startswith("  measured: rank 2 is late in 75 of 75 collectives")
    assert page[at + 2].startswith("  advice: ")


def test_finding_is_a_record_now_and_then_while_it_holds():
    out, session = io.StringIO(), waiting_job()
    writer, rules = RecordWriter(out), []
    for _ in range(3):
        writer.write(session.tick())
        found = records(out.getvalue())
        rules.append([each["ranks"] for each in found if each.get("rule") == "slow_compute"])
        session.clock.pass_s(SAY_AGAIN_NS / 1e9 / 2)
    assert rules == [[[2]], [[2]], [[2], [2]]]
