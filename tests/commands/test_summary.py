"""What the terminal keeps of a job when the dashboard is left."""

from __future__ import annotations

from overlaptop.commands.dashboard import summary
from tests.fleet.builders import status, welcome
from tests.fleet.fakes import FakeSession
from tests.tui.waits import waiting_job


def test_summary_tells_how_long_steps_overlap_and_who_is_late():
    job, first, *_ = summary(waiting_job().tick(), 134.0).splitlines()
    assert job.startswith("train.py, 4 ranks, watched for 2 m 14 s: step 7, 80.0 ms a step, overlap ")
    assert first.startswith("rank 2 is late")


def test_summary_of_a_job_without_steps_is_empty():
    assert not summary(FakeSession(welcome(), status()).tick(), 5.0)
