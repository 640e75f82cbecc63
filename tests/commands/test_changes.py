"""``overlaptop changes``: the log of changes as a table and as records."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from msgspec.structs import asdict, replace

from overlaptop.commands import changes
from overlaptop.jobs import change_log
from overlaptop.records import ChangeRecord

from .running import records, run_here

MADE = ChangeRecord(
    at_ns=1_700_000_000_123_000_000, job="job-1", script="train.py", host="gpu-a", by="me@gpu-a, pid 7",
    knob="bucket_cap_mb", old="25", new="50", step=1234, outcome="changed", reason="", command="",
)  # fmt: skip
REFUSED = replace(
    MADE, job="job-2", old=None, new="7", step=None, outcome="refused",
    reason="rank 0 refused: \x1b[2J",
)  # fmt: skip


def test_each_change_is_a_row_and_a_record():
    for change in (MADE, REFUSED):
        change_log.append(change)
    head, made, refused = run_here("changes").stdout.splitlines()
    assert head.split() == ["at", "job", "knob", "from", "to", "step", "outcome", "by", "why", "not"]
    here = datetime.fromtimestamp(MADE.at_ns // 10**9, UTC).astimezone()
    assert made.split("  ") == [
        here.strftime("%Y-%m-%d %H:%M:%S"), "job-1", "bucket_cap_mb", "", "25", "50", "1,234", "changed",
        "me@gpu-a, pid 7",
    ]  # fmt: skip
    words = "– 7 – refused me@gpu-a, pid 7 rank 0 refused: ?[2J"
    assert refused.split()[4:] == words.split()
    (record,) = records(run_here("changes", "--json", "--job", "job-1").stdout)
    assert record == {"type": "change", **asdict(MADE)}


@pytest.mark.parametrize(("words", "of"), [([], ""), (["--job", "job-9"], " of job job-9")])
def test_without_changes_one_line_reports_it(words, of, monkeypatch):
    monkeypatch.setattr(changes, "list_jobs", lambda: [SimpleNamespace(job="job-9")])
    done = run_here("changes", *words)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"overlaptop: nothing was changed yet{of}\n"


def test_a_key_of_no_job_that_runs_or_was_changed_is_a_failure():
    change_log.append(MADE)
    done = run_here("changes", "--job", "nope")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "overlaptop: no job nope runs here, and the log has no change of it\n"
