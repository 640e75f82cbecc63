"""The log of changes and the note of the last end: bounded, and read only as far as they are valid."""

import json
import os
import stat

import pytest
from msgspec.structs import asdict, replace

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
RECORD = {"at": "2023-11-14T22:13:20.123+00:00", **asdict(CHANGE)}
del RECORD["at_ns"]


def log_all(*changes):
    for change in changes:
        change_log.append(change)


def test_changes_are_lines_read_oldest_first_or_of_one_job(socket_dir):
    assert change_log.read() == []
    changes = [replace(CHANGE, step=step, job=f"job-{step % 2}") for step in range(5)]
    changes.append(replace(CHANGE, old=None, step=None, outcome="refused", reason="rank 1 refused: no ☃"))
    log_all(CHANGE, *changes)
    log = socket_dir / "changes.jsonl"
    assert json.loads(log.read_text().splitlines()[0]) == RECORD
    assert (change_log.path(), stat.S_IMODE(log.stat().st_mode)) == (log, 0o600)
    assert change_log.read() == [CHANGE, *changes]
    assert change_log.read("job-0") == changes[0:5:2]
    assert change_log.read(newest=2) == changes[-2:]


def test_later_outcome_replaces_the_first(socket_dir):
    first = replace(CHANGE, command="20231114-221320-aaaaaa", outcome="unknown", reason="rank 1 is silent")
    other, elsewhere = replace(CHANGE, command="20231114-221321-bbbbbb"), replace(first, host="gpu-b")
    truth = replace(first, outcome="changed", reason="")
    log_all(first, elsewhere, other)
    assert change_log.read() == [first, elsewhere, other]
    log_all(truth)
    assert change_log.read() == [elsewhere, other, truth]


def test_full_log_is_moved_away_without_cutting_a_line(socket_dir):
    written = 2 * MAX_BYTES // 700
    log_all(*(replace(CHANGE, reason="x" * 500, step=step) for step in range(written)))
    assert sorted(path.name for path in socket_dir.iterdir()) == ["changes.jsonl", "changes.jsonl.1"]
    assert all(path.stat().st_size < MAX_BYTES + 1000 for path in socket_dir.iterdir())
    steps = [change.step for change in change_log.read(newest=written)]
    assert len(steps) > MAX_BYTES // 1000
    assert steps == list(range(written - len(steps), written))


WRONG = [
    json.dumps(RECORD | wrong).encode()
    for wrong in ({"at": "yesterday"}, {"at": 7}, {"by": None}, {"step": 1.5}, {"outcome": "done"})
]


@pytest.mark.parametrize("line", [b"{}", b"[]", b"\xff\xfe", b"{" * 100_000, *WRONG])
def test_a_line_that_is_no_change_is_passed_over(socket_dir, line):
    log_all(CHANGE)
    with change_log.path().open("ab") as file:
        file.write(line + b"\n")
    log_all(CHANGE)
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


def test_the_end_of_the_last_job_replaces_any_previous_note():
    assert last_end.read() is None
    note = base_dir() / "last_end.json"
    for rank, unreadable in ((2, b'{"script":"tr\xe9in.py","ended_ns":1,"ends":[]}'), (3, b"")):
        last_end.write(LastEnd("train.py", 150, (RankEnd(rank, 150, clean=True),), "job-1"))
        known = last_end.read()
        assert known is not None
        assert [end.rank for end in known.ends] == [rank]
        note.write_bytes(unreadable)
        assert last_end.read() is None


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
