"""``overlaptop set``: what it prints, and its exit status."""

import pytest

from overlaptop import cli
from overlaptop.commands import CommandError, following, setting
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import CommandReport, HubStatus, RankEnd

from .fakes import PlayedSession, arrival

BUCKET_CAP_MB = Knob("bucket_cap_mb", 25, "25", "25", 1, 10_000, unit="MiB")
COMMAND = commands.make_setting(BUCKET_CAP_MB, 50)
SAID = "bucket_cap_mb 25 -> 50 at step 7"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "TICK_S", 0.0)


def said(rank: int, state: str, step: int | None = None, text: str = "") -> CommandReport:
    return CommandReport(rank, COMMAND.id, COMMAND.name, 0, state, step, text)


def test_one_line_says_what_all_ranks_have_changed_and_the_progress_goes_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    session = PlayedSession(
        [*arrival(), COMMAND],
        [said(0, "accepted"), said(1, "accepted")],
        [said(0, "agreed", 7), said(1, "agreed", 7)],
        [said(0, "changing", 7), said(1, "changing", 7)],
        [said(0, "changed", 7, SAID), said(1, "changed", 7, SAID)],
    )
    assert setting.follow(session, COMMAND) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [SAID]
    assert err.splitlines() == [
        f"overlaptop: set bucket_cap_mb 50: {words}"
        for words in ("accepted", "agreed on step 7", "changing")
    ]


def test_what_a_rank_says_cannot_write_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    session = PlayedSession(
        [*arrival(), COMMAND], [said(rank, "changed", 7, f"\x1b[2J{rank}") for rank in (0, 1)]
    )
    assert setting.follow(session, COMMAND) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_refusal_says_whose_and_why_and_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    session = PlayedSession(
        [*arrival(), COMMAND],
        [said(0, "failed", None, "rank 1 refuses: its model is compiled")],
        [said(1, "refused", None, "its model is compiled")],
    )
    with pytest.raises(CommandError, match="not changed: rank 1 refuses: its model is compiled") as failure:
        setting.follow(session, COMMAND)
    assert failure.value.status == 1
    assert capsys.readouterr().out == ""


def test_a_job_that_ends_in_the_middle_and_a_line_that_stays_broken_are_no_endless_wait() -> None:
    ends = [RankEnd(rank=rank, at_ns=0, clean=True) for rank in (0, 1)]
    status = HubStatus(at_ns=0, ranks_connected=0, dropped=0, job_ended=True)
    session = PlayedSession([*arrival(), COMMAND], [said(0, "changing", 7)], [*ends, status])
    with pytest.raises(CommandError, match="rank 0 ended before it was done"):
        setting.follow(session, COMMAND)
    session = PlayedSession(
        [*arrival(), COMMAND], [said(rank, "changing", 7) for rank in (0, 1)], link=LinkState.LOST
    )
    with pytest.raises(CommandError, match="the line to the job broke"):
        setting.follow(session, COMMAND)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "the following arguments are required: NAME=VALUE"),
        (["bucket_cap_mb"], "must be NAME=VALUE with a whole number, not 'bucket_cap_mb'"),
        (["bucket_cap_mb="], "must be NAME=VALUE"),
        (["bucket_cap_mb=2.5"], "must be NAME=VALUE with a whole number"),
        (["bucket_cap_mb=-1"], "must be NAME=VALUE with a whole number"),
        (["=5"], "must be NAME=VALUE"),
        (["bucket_cap_mb=5", "--job", "../x"], "is no job's key"),
    ],
)
def test_a_usage_error_is_one_line_and_status_2(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["set", *words])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "knobs", "complaint"),
    [
        ("lr", (BUCKET_CAP_MB,), "lr cannot be set; of this job there is: bucket_cap_mb"),
        ("lr", (), "lr cannot be set; of this job there is: nothing"),
    ],
)
def test_what_a_job_does_not_have_cannot_be_set(
    name: str, knobs: tuple[Knob, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setting, "KNOBS_S", 0.0)
    session = PlayedSession([*arrival(), *(KnobFacts(rank, knobs) for rank in (0, 1))])
    with pytest.raises(CommandError, match=complaint) as failure:
        setting.find_knob(session, name)
    assert failure.value.status == 2


def test_without_a_job_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["set", "bucket_cap_mb=50"]) == 1
    assert "no job with an agent runs here" in capsys.readouterr().err
