"""The log of changes: whole lines, bounded, and believed only as far as it can be understood."""

import json
import os
import stat

import pytest
from msgspec.structs import replace

from overlaptop.jobs import change_log, last_end
from overlaptop.jobs.change_log import MAX_BYTES
from overlaptop.jobs.folder import base_dir
from overlaptop.jobs.last_end import LastEnd
from overlaptop.records import ChangeRecord
from overlaptop.report.troubles import of_last
from overlaptop.wire.messages import RankEnd

CHANGE = ChangeRecord(
    at_ns=1_700_000_000_123_000_000, job="job-1", script="train.py", host="gpu-a", by="me@gpu-a, pid 7",
    knob="bucket_cap_mb", old="25", new="50", step=1234, outcome="changed", reason="", command="",
)  # fmt: skip
RECORD = {
    "at": "2023-11-14T22:13:20.123+00:00", "job": "job-1", "script": "train.py", "host": "gpu-a",
    "by": "me@gpu-a, pid 7", "knob": "bucket_cap_mb", "old": "25", "new": "50",
    "step": 1234, "outcome": "changed", "reason": "", "command": "",
}  # fmt: skip


def test_a_change_is_one_line_that_says_who_when_from_and_to(socket_dir):
    change_log.append(CHANGE)
    log = socket_dir / "changes.jsonl"
    (line,) = log.read_text().splitlines()
    assert json.loads(line) == RECORD
    assert (change_log.path(), stat.S_IMODE(log.stat().st_mode)) == (log, 0o600)
    older = {name: value for name, value in RECORD.items() if name != "command"}
    log.write_text(f"{json.dumps(older)}\n" * 2)  # of a version that named no command: all count
    assert change_log.read() == [CHANGE] * 2
    log.unlink()
    assert change_log.read() == []


def test_log_is_read_oldest_first_and_of_one_job_on_request(socket_dir):
    changes = [replace(CHANGE, step=step, job=f"job-{step % 2}") for step in range(5)]
    changes.append(replace(CHANGE, old=None, step=None, outcome="refused", reason="rank 1 refused: no ☃"))
    for change in changes:
        change_log.append(change)
    assert change_log.read() == changes
    assert change_log.read("job-0") == changes[0:5:2]
    assert change_log.read(newest=2) == changes[-2:]
    assert change_log.read(newest=0) == []


def test_later_outcome_replaces_the_first(socket_dir):
    first = replace(CHANGE, command="20231114-221320-aaaaaa", outcome="unknown", reason="rank 1 is silent")
    other = replace(CHANGE, command="20231114-221321-bbbbbb")
    truth = replace(first, outcome="changed", reason="")
    elsewhere = replace(first, host="gpu-b")
    for change in (first, elsewhere, other):
        change_log.append(change)
    assert change_log.read() == [first, elsewhere, other]
    change_log.append(truth)
    assert change_log.read() == [elsewhere, other, truth]


def test_full_log_is_moved_away_without_cutting_a_line(socket_dir):
    long = replace(CHANGE, reason="x" * 500)
    written = 2 * MAX_BYTES // 700
    for step in range(written):
        change_log.append(replace(long, step=step))
    names = sorted(path.name for path in socket_dir.iterdir())
    assert names == ["changes.jsonl", "changes.jsonl.1"]
    assert all(path.stat().st_size < MAX_BYTES + 1000 for path in socket_dir.iterdir())
    steps = [change.step for change in change_log.read(newest=written)]
    assert len(steps) > MAX_BYTES // 1000
    assert steps == list(range(written - len(steps), written))


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[]", b"\xff\xfe", b"{" * 100_000,
        *(
            json.dumps({**RECORD, **wrong}).encode()
            for wrong in ({"at": "yesterday"}, {"at": 7}, {"by": None}, {"step": 1.5}, {"outcome": "done"})
        ),
    ],
)  # fmt: skip
def test_a_line_that_is_no_change_is_passed_over(socket_dir, line):
    change_log.append(CHANGE)
    with change_log.path().open("ab") as file:
        file.write(line + b"\n")
    change_log.append(CHANGE)
    assert change_log.read() == [CHANGE, CHANGE]


def test_a_link_or_a_fifo_in_its_place_is_not_used(socket_dir, tmp_path):
    target = tmp_path / "target"
    target.write_text("mine\n")
    for make in (lambda path: path.symlink_to(target), os.mkfifo):
        make(change_log.path())
        with pytest.raises(OSError, match=r"symbolic|No such device"):
            change_log.append(CHANGE)
        assert change_log.read() == []
        change_log.path().unlink()
    assert target.read_text() == "mine\n"


def written(rank, job="job-1"):
    """Write that a rank ended; the ranks whose ends are known then."""
    end = RankEnd(rank, 150, clean=True, failure="ValueError")
    last_end.write(LastEnd("train.py", 150, (end,), job))
    known = last_end.read()
    assert known is not None
    return [end.rank for end in known.ends]


def test_the_end_of_the_last_job_replaces_the_previous():
    assert last_end.read() is None
    assert written(2) == [2]
    assert written(3, job="job-2") == [3]


def test_job_that_its_starter_ended_is_no_failure():
    for job, stopped_ns, is_stop in (("job-1", 201, False), ("job-2", 190, False), ("job-1", 190, True)):
        ends = tuple(RankEnd(rank, 200, clean=False, exit_code=-15) for rank in (0, 1))
        last_end.write(LastEnd("train.py", 200, ends, "job-1"))
        last_end.note_stop(job, stopped_ns)
        words = of_last(last_end.read(), 200)
        assert ("the overlaptop that had started it ended it" in words) == is_stop
        assert ("all ranks killed by SIGTERM" in words) != is_stop


def test_interrupted_hang_is_told():
    end = RankEnd(0, 200, clean=True, failure="KeyboardInterrupt", exit_code=-2)
    for hung, words in (
        (False, "SIGINT)"),
        (True, "SIGINT) while no step ended; overlaptop report says where"),
    ):
        last_end.write(LastEnd("train.py", 200, (end,), "job-1", hung=hung))
        assert of_last(last_end.read(), 200).endswith(f"ago: interrupted ({words}")


def test_a_note_that_is_no_utf8_is_none_and_replaced():
    written(0)
    (base_dir() / "last_end.json").write_bytes(b'{"script":"tr\xe9in.py","ended_ns":1,"ends":[]}')
    assert last_end.read() is None
    assert written(1) == [1]
