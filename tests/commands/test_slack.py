"""``overlaptop slack``: what it says before and after, and its exit status."""

import pytest

from overlaptop.commands import slack
from overlaptop.wire.commands import GPU, argument
from tests.fleet.builders import MS, info
from tests.trials.live_job import LiveJob

from .running import records, run_here


@pytest.fixture
def job(quickly, monkeypatch):
    session = LiveJob(lambda _value: 50.0, critical={1: 1.0}, noise=0.002)
    monkeypatch.setattr(slack, "join", lambda _key, _hosts: session)
    return session


def test_a_table_and_records_tell_each_ranks_slope(job):
    done = run_here("slack", "--delay", "5ms")
    head, *rows = done.stdout.splitlines()
    assert (done.returncode, head.split()) == (0, ["rank", "place", "slope", "trials"])
    ends = [(row.split()[0], row.split()[1], row.split()[-1]) for row in rows]
    assert ends == [("0", "host", "slack"), ("1", "host", "critical")]
    found = records(run_here("slack", "--delay", "5ms", "--json").stdout)
    ranks = [record for record in found if record["type"] == "rank"]
    assert [record["verdict"] for record in ranks] == ["slack", "critical"]
    assert all(record["slope_low"] <= record["slope"] <= record["slope_high"] for record in ranks)
    assert sum(record["type"] == "trial" for record in found) == sum(record["trials"] for record in ranks)


def test_the_cost_is_said_before_anything_is_delayed(job):
    done = run_here("slack", "--delay", "5ms", "--budget", "1")
    assert job.sent == []
    cost = "delays the host of ranks 0-1 in turn by 5.00 ms a step: costs the job 1.68 s or more"
    assert done.stderr.splitlines()[0] == f"overlaptop: {cost}"


def test_the_delay_is_a_share_of_the_step_unless_it_is_named(job):
    run_here("slack", "--budget", "100")
    assert {round(delay_ns / MS, 1) for _, delay_ns in job.delays} == {1.0}
    job.delays.clear()
    run_here("slack", "--budget", "100", "--delay", "10%", "--ranks", "1", "--place", "gpu")
    assert argument(job.sent[-1], "place") == GPU
    assert {(rank, round(delay_ns / MS)) for rank, delay_ns in job.delays} == {(1, 5)}


def test_a_job_with_jitter_is_delayed_by_more(job):
    job.noise = 0.03
    for _ in range(20):
        job.tick()
    run_here("slack", "--budget", "150")
    assert min(delay_ns for _, delay_ns in job.delays) > 2 * MS


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--delay", "5"], "must be a time or a share, as 5ms or 2%, not '5'"),
        (["--delay", "0ms"], "must be a time or a share"),
        (["--delay", "11s"], "delay_ns must be from 1 to 10000000000"),
        (["--ranks", "1-2"], "must be ranks with commas between them"),
        (["--ranks", "0,7"], "there is no rank 7"),
    ],
)
def test_what_cannot_be_delayed_is_one_line(job, words, complaint):
    done = run_here("slack", *words)
    assert (done.returncode, job.sent) == (2, [])
    assert complaint in done.stderr


def test_a_job_without_control_says_how_to_allow_it(job):
    job.fleet.apply(info(0, control_allowed=False))
    done = run_here("slack")
    assert (done.returncode, job.sent) == (1, [])
    assert "start the job with --control" in done.stderr
