"""``overlaptop set``: what it prints, and its exit status."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from overlaptop import cli
from overlaptop.console import CommandError, following, setting
from overlaptop.fleet.snapshot import LinkState
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob, KnobFacts
from overlaptop.wire.messages import Command, CommandReport, HubStatus, Message, RankEnd

from .fakes import PlayedSession, arrival, rank_info, status

BUCKET_CAP_MB = Knob("bucket_cap_mb", 25, "25", "25", 1, 10_000, unit="MiB")
COMMAND = commands.make_setting(BUCKET_CAP_MB, 50)
SAID = "bucket_cap_mb 25 -> 50 at step 7"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (following, setting):
        monkeypatch.setattr(module, "TICK_S", 0.0)
    monkeypatch.setattr(setting, "KNOBS_S", 0.0)
    monkeypatch.setattr(following, "LIMIT_S", 0.0)


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
    ended = HubStatus(at_ns=0, ranks_connected=0, dropped=0, job_ended=True)
    session = PlayedSession([*arrival(), COMMAND], [said(0, "changing", 7)], [*ends, ended])
    words = "^not known whether it was changed: rank 0 ended before it reported$"
    with pytest.raises(CommandError, match=words) as failure:
        setting.follow(session, COMMAND)
    assert failure.value.status == 1
    session = PlayedSession(
        [*arrival(), COMMAND], [said(rank, "changing", 7) for rank in (0, 1)], link=LinkState.LOST
    )
    with pytest.raises(CommandError, match="the line to the job broke"):
        setting.follow(session, COMMAND)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["bucket_cap_mb"], "must be NAME=VALUE with a whole number or script, not 'bucket_cap_mb'"),
        (["bucket_cap_mb="], "must be NAME=VALUE"),
        (["bucket_cap_mb=2.5"], "must be NAME=VALUE with a whole number"),
        (["bucket_cap_mb=--1"], "must be NAME=VALUE with a whole number"),
        (["bucket_cap_mb=99999999999"], "must be NAME=VALUE with a whole number"),
        (["bucket_cap_mb=\u0661"], "must be NAME=VALUE with a whole number"),
        (["bucket_cap_mb=5", "--json"], "--json goes without NAME=VALUE"),
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
def test_what_a_job_does_not_have_cannot_be_set(name: str, knobs: tuple[Knob, ...], complaint: str) -> None:
    session = PlayedSession([*arrival(), *(KnobFacts(rank, knobs) for rank in (0, 1))])
    with pytest.raises(CommandError, match=complaint) as failure:
        setting.find_knob(session, name)
    assert failure.value.status == 2


def test_without_a_job_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["set", "bucket_cap_mb=50"]) == 1
    assert "no job with an agent runs here" in capsys.readouterr().err


# A job with knobs

ACCUMULATION = Knob(
    "accumulation", 4, "4", "2", 1, 8, choices=(1, 2, 4, 8), owner="the script",
    about="micro-batches a step", refusal="only between epochs",
)  # fmt: skip


class Job(PlayedSession):
    """Two ranks that say what can be changed of them, and do what they are told."""

    job_key = "abc"

    def __init__(self, *knobs: Knob, allowed: bool = True, then: tuple[Message, ...] = ()) -> None:
        infos = [replace(rank_info(rank), control_allowed=allowed) for rank in (0, 1)]
        facts = [KnobFacts(rank, knobs) for rank in (0, 1)]
        super().__init__([arrival()[0], *infos, *facts, *then, status()])
        self.sent: list[Command] = []

    def send(self, command: Command) -> str:
        self.sent.append(command)
        reports = [replace(said(rank, "changed", 7, SAID), command=command.id) for rank in (0, 1)]
        self._batches = [[command], reports]
        return ""


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    def play(job: Job) -> Job:
        monkeypatch.setattr(setting, "join", lambda _key, _hosts: job)
        return job

    return play


def test_a_knob_is_set_by_its_name_and_given_back_to_the_script(play, capsys) -> None:
    job = play(Job(BUCKET_CAP_MB, replace(ACCUMULATION, least=-8, choices=(), refusal="")))
    for words in ("bucket_cap_mb=50", "accumulation=-3", "bucket_cap_mb=script"):
        assert cli.main(["set", words]) == 0
    assert [commands.in_words(command) for command in job.sent] == [
        "set bucket_cap_mb 50", "set accumulation -3", "restore bucket_cap_mb",
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [SAID] * 3


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        ("lr=1", 2, "lr cannot be set; of this job there is: bucket_cap_mb, accumulation"),
        ("bucket_cap_mb=0", 2, "bucket_cap_mb must be from 1 to 10000, not 0"),
        ("accumulation=3", 2, "accumulation must be one of 1, 2, 4, 8, not 3"),
        ("accumulation=8", 1, "not changed: rank 0: only between epochs"),
        ("accumulation=script", 1, "not changed: rank 0: only between epochs"),
    ],
)
def test_what_is_not_allowed_or_refused_is_said_and_not_sent(
    play, capsys, words, status, complaint
) -> None:
    job = play(Job(BUCKET_CAP_MB, ACCUMULATION))
    assert cli.main(["set", words]) == status
    assert capsys.readouterr().err == f"overlaptop: {complaint}\n"
    assert job.sent == []


def test_a_job_that_does_not_allow_changes_says_how_to_before_anything_is_sent(play, capsys) -> None:
    job = play(Job(BUCKET_CAP_MB, allowed=False))
    assert cli.main(["set", "bucket_cap_mb=50"]) == 1
    assert "start the job with --control to allow changes" in capsys.readouterr().err
    assert job.sent == []


def test_who_changes_what_is_searched_for_is_told_what_that_does(play, capsys) -> None:
    search = replace(commands.make_search(BUCKET_CAP_MB), by="you@there, pid 1")
    play(Job(BUCKET_CAP_MB, then=(search,)))
    assert cli.main(["set", "bucket_cap_mb=50"]) == 0
    assert "you@there, pid 1 searches for the best bucket_cap_mb: that ends" in capsys.readouterr().err


def test_without_a_change_all_knobs_are_listed_with_what_is_allowed_and_refused(play, capsys) -> None:
    play(Job(replace(BUCKET_CAP_MB, owner="DDP", about="MiB \x1b[2J a bucket"), ACCUMULATION))
    assert cli.main(["set"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "knob           value  script  allowed         of          what it does",
        "bucket_cap_mb     25      25  1 to 10000 MiB  DDP         MiB ?[2J a bucket",
        "accumulation       4       2  1, 2, 4 or 8    the script  micro-batches a step",
        "accumulation cannot be changed now: rank 0: only between epochs",
    ]


def test_the_list_is_also_one_record_a_knob(play, capsys) -> None:
    play(Job(replace(BUCKET_CAP_MB, value=None, value_text=""), ACCUMULATION))
    assert cli.main(["set", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "type": "knob", "job": "abc", "knob": "bucket_cap_mb", "value": None, "value_text": None,
        "original_text": "25", "least": 1, "most": 10_000, "choices": None, "unit": "MiB", "owner": "",
        "about": "", "code": None, "differs": False, "refusal": None,
    }  # fmt: skip
    assert (second["choices"], second["refusal"]) == ([1, 2, 4, 8], "rank 0: only between epochs")


def test_a_job_of_which_nothing_can_be_changed_says_so(play, capsys) -> None:
    play(Job())
    assert cli.main(["set"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "overlaptop: nothing can be changed of this job\n")


def test_ranks_that_differ_for_good_are_shown_as_they_are(play, capsys) -> None:
    play(Job(BUCKET_CAP_MB, then=(KnobFacts(1, (replace(BUCKET_CAP_MB, value_text="50"),)),)))
    assert cli.main(["set"]) == 0
    assert "25 (ranks differ)" in capsys.readouterr().out
