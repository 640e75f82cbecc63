"""``overlaptop changes``: the log of changes as a table and as records."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from overlaptop import cli
from overlaptop.wire import change_log
from overlaptop.wire.change_log import LoggedChange

MADE = LoggedChange(
    at_ns=1_700_000_000_123_000_000, job="job-1", script="train.py", host="gpu-a", by="me@gpu-a, pid 7",
    search="", knob="bucket_cap_mb", was="25", becomes="50", step=1234, outcome="changed", reason="",
)  # fmt: skip
REFUSED = replace(
    MADE, job="job-2", was=None, becomes="7", step=None, outcome="refused", search="2026-abc",
    reason="rank 0 refused: \x1b[2J",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("OVERLAPTOP_DIR", str(tmp_path))
    return tmp_path


def test_each_change_is_a_row_that_says_when_from_to_who_and_why_not(capsys) -> None:
    for change in (MADE, REFUSED):
        change_log.append(change)
    assert cli.main(["changes"]) == 0
    head, made, refused = capsys.readouterr().out.splitlines()
    assert head.split() == ["at", "job", "knob", "from", "to", "step", "outcome", "by", "why", "not"]
    here = datetime.fromtimestamp(MADE.at_ns // 10**9, UTC).astimezone()
    assert made.split("  ") == [
        here.strftime("%Y-%m-%d %H:%M:%S"), "job-1", "bucket_cap_mb", "", "25", "50", "1,234", "changed",
        "me@gpu-a, pid 7",
    ]  # fmt: skip
    assert refused.split()[4:] == [
        "–", "7", "–", "refused", "me@gpu-a,", "pid", "7", "(search", "2026-abc)", "rank", "0", "refused:",
        "?[2J",
    ]  # fmt: skip


def test_records_hold_all_of_it_and_one_jobs_are_picked_by_its_key(capsys) -> None:
    for change in (MADE, REFUSED):
        change_log.append(change)
    assert cli.main(["changes", "--json", "--job", "job-1"]) == 0
    (record,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert record == {
        "type": "change", "at_ns": 1_700_000_000_123_000_000, "job": "job-1", "script": "train.py",
        "host": "gpu-a", "by": "me@gpu-a, pid 7", "search": "", "knob": "bucket_cap_mb", "was": "25",
        "becomes": "50", "step": 1234, "outcome": "changed", "reason": "", "command": "",
    }  # fmt: skip


def test_without_changes_it_says_so(capsys) -> None:
    assert cli.main(["changes"]) == 0
    assert cli.main(["changes", "--job", "job-9"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "overlaptop: nothing was changed yet", "overlaptop: nothing was changed yet of job job-9",
    ]  # fmt: skip


def test_a_folder_that_others_may_enter_is_refused_in_one_line(folder: Path, capsys) -> None:
    folder.chmod(0o755)
    assert cli.main(["changes"]) == 1
    assert "has mode 0755, not 0700" in capsys.readouterr().err
    folder.chmod(0o700)
