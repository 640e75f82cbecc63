"""The note on how the last job ended."""

from overlaptop.jobs import last_end
from overlaptop.jobs.folder import base_dir
from overlaptop.jobs.last_end import LastEnd
from overlaptop.report.troubles import of_last
from overlaptop.wire.messages import RankEnd


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
