"""``overlaptop capture``: what it prints, and its exit status."""

import json

import pytest

from overlaptop import cli
from overlaptop.console import CommandError, capture, following
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire import commands
from overlaptop.wire.messages import Command, CommandReport, HubStatus, RankEnd

from .fakes import PlayedSession, arrival

COMMAND = commands.make(commands.CAPTURE, {"steps": 5})


class Played(PlayedSession):
    job_key = "abc"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "TICK_S", 0.0)


def said(rank: int, state: str, step: int | None = None, text: str = "") -> CommandReport:
    return CommandReport(rank, COMMAND.id, COMMAND.name, 0, state, step, text)


def given() -> list[object]:
    return [*arrival(), Command(COMMAND.id, COMMAND.name, COMMAND.arguments, "me", 1_700_000_000 * 10**9)]


def test_each_rank_has_a_line_with_its_path_and_the_progress_goes_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = Played(
        given(),
        [said(0, "accepted"), said(1, "accepted")],
        [said(0, "agreed", 7), said(1, "agreed", 7)],
        [said(0, "written", 7, "/there/rank0.json.gz")],
        [said(1, "written", 7, "/there/rank1.json.gz")],
    )
    assert capture.follow(session, COMMAND, as_json=False) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["/there/rank0.json.gz", "/there/rank1.json.gz"]
    assert err.splitlines() == [
        f"overlaptop: capture (steps 5): {words}" for words in ("accepted", "agreed on step 7", "written")
    ]


def test_a_path_cannot_write_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    session = Played(given(), [said(rank, "written", 7, f"/there/\x1b[2J{rank}") for rank in (0, 1)])
    assert capture.follow(session, COMMAND, as_json=False) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_failure_says_whose_and_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    session = Played(
        given(),
        [said(0, "written", 7, "/there/rank0.json.gz"), said(1, "failed", None, "OSError: disk full")],
    )
    with pytest.raises(CommandError, match="no capture: rank 1 failed: OSError: disk full") as failure:
        capture.follow(session, COMMAND, as_json=False)
    assert failure.value.status == 1
    assert capsys.readouterr().out.splitlines() == ["/there/rank0.json.gz"]


def test_records_tell_of_every_rank_also_of_one_that_failed(capsys: pytest.CaptureFixture[str]) -> None:
    session = Played(
        given(),
        [said(0, "written", 7, "/there/rank0.json.gz"), said(1, "failed", None, "OSError: disk full")],
    )
    with pytest.raises(CommandError):
        capture.follow(session, COMMAND, as_json=True)
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(record) for record in records] == [
        ["type", "job", "id", "rank", "state", "step", "path", "reason", "live_overlap", "host"]
    ] * 2
    assert [(r["rank"], r["state"], r["path"], r["reason"]) for r in records] == [
        (0, "written", "/there/rank0.json.gz", None),
        (1, "failed", None, "OSError: disk full"),
    ]


def test_a_job_that_ends_in_the_middle_is_no_endless_wait() -> None:
    ends = [RankEnd(rank=rank, at_ns=0, clean=True) for rank in (0, 1)]
    status = HubStatus(at_ns=0, ranks_connected=0, dropped=0, job_ended=True)
    session = Played(given(), [said(0, "recording", 7)], [*ends, status])
    with pytest.raises(CommandError, match="rank 0 ended before it was done"):
        capture.follow(session, COMMAND, as_json=False)


def test_a_line_that_stays_broken_is_no_endless_wait() -> None:
    session = Played(given(), [said(rank, "recording", 7) for rank in (0, 1)], link=LinkState.LOST)
    with pytest.raises(CommandError, match="the line to the job broke"):
        capture.follow(session, COMMAND, as_json=False)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--steps", "0"], "must be a positive whole number"),
        (["--steps", "101"], "steps must be from 1 to 100, not 101"),
        (["--steps", "many"], "must be a positive whole number"),
        (["--job", "../x"], "is no job's key"),
        (["train.py"], "unrecognized arguments"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["capture", *words])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert complaint in capsys.readouterr().err


def test_without_a_job_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["capture"]) == 1
    assert "no job with an agent runs here" in capsys.readouterr().err
