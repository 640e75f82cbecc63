"""What the terminal keeps of a job when the dashboard is left."""

from overlaptop.commands.dashboard import last_words
from tests.fleet.builders import status, welcome
from tests.fleet.fakes import FakeSession
from tests.tui.waits import waiting_job


def test_last_words_are_the_report_of_what_the_dashboard_saw():
    job, step, *_ = last_words(waiting_job().tick()).splitlines()
    assert job.startswith("train.py, 4 ranks on gpu-a: 8 steps, runs for ")
    assert step.startswith("  step        median 80.0 ms, p99 80.0 ms")
    assert "rank 2 late in" in last_words(waiting_job().tick())


def test_nothing_is_said_of_a_job_without_steps():
    assert not last_words(FakeSession(welcome(), status()).tick())
